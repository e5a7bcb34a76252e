"""Carries out what the engine decides: the feed, what it watches, whom it asks, what it writes down."""
