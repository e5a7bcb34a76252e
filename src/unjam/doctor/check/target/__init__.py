"""The target process: runs the program until its first iter(loader), then waits for requests."""
