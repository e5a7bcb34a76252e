"""The process of the command: starts the program and the trials, watches them, and collects what they wrote."""
