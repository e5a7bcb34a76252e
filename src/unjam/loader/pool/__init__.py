"""Where work runs. The engine drives any of them through one small protocol."""
