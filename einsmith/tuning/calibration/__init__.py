"""Coefficients of the machine, measured once and stored."""
