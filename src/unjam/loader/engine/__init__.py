"""Pure decisions: events in, actions out.

Nothing here reads a clock, opens a file or starts a process, so a test can replay every
interleaving of events. Only `Machine.handle` changes the state, and `driver/batch_table.py` after a
signal handler raised.
"""
