"""Checked runs: guarded memory, poison, comparison with the evaluator."""
