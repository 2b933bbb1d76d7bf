"""Machine code of GPUs, compiled ahead of time by Triton in worker processes."""
