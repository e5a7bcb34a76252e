"""`unjam why`: observes a running program from outside."""
