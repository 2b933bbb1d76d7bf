"""Peers side by side: the same mathematics, verified against each other, timed in interleaved rounds of one run."""

TABLE = "benchmarks.worker"
"""Module with the peers and problems of the benchmarks."""
