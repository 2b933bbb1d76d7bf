"""The native function that runs a program, and its fork-join pool."""
