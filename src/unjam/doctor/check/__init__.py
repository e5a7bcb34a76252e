"""`unjam check`: captures a loader, tries it again in sandboxes with one thing changed at a time, and says which change made the failure go."""
