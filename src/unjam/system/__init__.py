"""Facts about processes and the machine that they run on."""
