"""Algebraic passes, a file each: inlining, available expressions, factor hoisting, prefix sums and others."""
