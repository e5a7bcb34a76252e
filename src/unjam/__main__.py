"""`python -m unjam`."""

from unjam.cli import app

app(prog_name="unjam")
