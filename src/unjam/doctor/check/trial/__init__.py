"""The process of one trial: a fork of the target, or a fresh interpreter."""
