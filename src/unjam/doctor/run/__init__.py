"""`unjam run`: an unmodified program on unjam's loader, or on torch's own and watched."""
