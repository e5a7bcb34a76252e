"""`unjam check`: captures a loader and tries it in sandboxes, changing one thing at a time.

The change that makes the failure disappear shows the cause.
"""
