"""Sends a dataset to the workers: pickled once, with the module and process state it relies on."""
