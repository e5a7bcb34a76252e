"""Queries on facts that several mechanisms and rules share. None of them names a cause."""
