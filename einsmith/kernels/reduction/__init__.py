"""Reductions that are neither contractions nor stencils."""
