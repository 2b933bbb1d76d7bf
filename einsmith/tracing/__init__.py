"""Traced values: index expressions and the graph that they build, with the methods of NumPy's and PyTorch's tensors."""
