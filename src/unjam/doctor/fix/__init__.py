"""`unjam check --fix`: edits a program's source as little as possible, and proves that it helps."""
