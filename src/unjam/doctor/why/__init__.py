"""`unjam why`: looks at a running program from outside."""
