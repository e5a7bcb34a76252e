"""Plain records of what the doctor knows. Nothing here decides what is wrong."""
