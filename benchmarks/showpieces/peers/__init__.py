"""Forms of the operators of the gallery in PyTorch and JAX, by the field of the operator."""
