"""The interface of patterns, the choice of a pattern and its configuration, and pointwise kernels."""
