"""Run a network's forward and loss, exported from PyTorch, with the functions of any array library."""
