"""Proofs about integers (bounds, intervals, linear forms, widths) and queries about expressions."""
