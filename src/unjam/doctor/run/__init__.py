"""`unjam run`: runs an unmodified program on unjam's loader, or records torch's own loader."""
