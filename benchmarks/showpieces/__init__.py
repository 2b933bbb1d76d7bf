"""Operators of research as their papers define them, beside the best published forms in PyTorch and JAX."""
