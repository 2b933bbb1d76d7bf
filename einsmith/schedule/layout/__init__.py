"""Choose how the tensors of a plan are stored: which dimension of each is the innermost one."""
