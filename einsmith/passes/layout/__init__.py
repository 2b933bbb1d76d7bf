"""How the tensors of a plan lie in memory: which dimension is the innermost one of each."""
