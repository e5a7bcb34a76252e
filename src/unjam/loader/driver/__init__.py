"""Carries out the engine's decisions in the training process, on a pool of workers."""
