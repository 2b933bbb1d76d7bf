"""Machine code of GPUs, made ahead of time by Triton in processes of its own, and what it consists of."""
