"""The same random programs on torch's DataLoader and on unjam's. An unintended difference is a bug.

program               what a program is: plain data, to and from JSON
generate              Hypothesis strategies that make programs
leaves                the values that samples are made of, by name
parts                 samplers, collate functions, worker_init functions, exceptions, by name
datasets              dataset classes, in a module, in a function and in `__main__`
build                 builds a loader from its description
execute               runs a program and records what is observed
describe              a batch or an exception as plain data
leftovers             what a process still holds when its loaders are gone
processes             the processes in which programs run, their time limits and exits
compare               the differences between the two recordings
intended_differences  differences that the documentation states, by name
search                generates programs until time is up, and shrinks those that differ
coverage              how often each dimension was used
run                   the command
"""
