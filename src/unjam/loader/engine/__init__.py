"""Pure decisions: events in, actions out.

Nothing here reads a clock, opens a file or starts a process, so every interleaving of a loader's life can be replayed
in a test. `Machine.handle` is the only thing that changes state.
"""
