"""Peers side by side: the same mathematics, verified against each other, timed in interleaved rounds of one run."""
