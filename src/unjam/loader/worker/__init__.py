"""The child's program: how it starts, what it is given, how it fetches, how it leaves."""
