"""The doctor: captures a loader, replays it in sandboxes, changes one thing at a time, and says what proved to be the cause."""
