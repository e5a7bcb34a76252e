"""Words and tables from facts. Never computes a verdict."""
