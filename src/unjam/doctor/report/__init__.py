"""Writes text, tables and pages from facts and findings. Decides nothing itself."""
