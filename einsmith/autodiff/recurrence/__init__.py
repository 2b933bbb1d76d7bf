"""Adjoints and tangents of recurrences, and checkpoints."""
