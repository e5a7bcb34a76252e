"""Ways to run a program without changing the user's files."""
