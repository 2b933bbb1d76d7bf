"""Passes from recurrences to loops: loop-invariant code, early exit, live steps, strip mining."""
