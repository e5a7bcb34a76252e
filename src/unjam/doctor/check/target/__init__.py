"""The process of the program under examination: it runs until its first iter(loader), and waits there for requests."""
