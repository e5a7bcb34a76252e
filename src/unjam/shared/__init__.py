"""Lists, mappings and arrays in shared memory; per-process handles; locks between processes."""
