"""The same random programs on torch's DataLoader and on unjam's; what differs and is not meant to is a mistake.

program     what a program is: plain data, to and from JSON
generate    Hypothesis strategies that make programs
leaves      the values that samples are made of, by name
parts       samplers, collate functions, worker_init functions, exceptions, by name
datasets    dataset classes, in a module, in a function and in `__main__`
build       a loader from its description
act         carries out a program and writes down what is seen
describe    a batch or an exception as plain data
leftovers   what a process still has when its loaders are gone
sides       the processes in which a program runs, their time limits and ends
compare     the differences between what was seen on the two sides
on_purpose  differences that the documentation states, by name
search      programs until the time is over; shrinking
coverage    how often each dimension was used
run         the command
"""
