"""How a dataset travels to the workers: pickled once, with the state of the modules and the process that it relies on."""
