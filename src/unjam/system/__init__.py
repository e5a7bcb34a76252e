"""Facts about a process and its machine. Nothing here judges, and nothing here is imported while a loader is healthy."""
