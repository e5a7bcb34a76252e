"""Worker processes: how they start, what they send and how they end."""
