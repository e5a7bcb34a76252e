"""One copy of what many processes read: lists, mappings and arrays over shared memory, handles and locks of a process's own."""
