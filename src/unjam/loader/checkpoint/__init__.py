"""Saving a loader's state and resuming from it."""
