"""The command's process: starts the program and trials, watches them, collects their results."""
