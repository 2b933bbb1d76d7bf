"""Compilation of a graph to an executable; the interface of back ends, and the CPU's."""
