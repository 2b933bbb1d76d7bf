"""Sums, maxima and minima at computed indices, in a fixed order."""
