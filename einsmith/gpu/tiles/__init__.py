"""The tile IR for GPUs, its patterns, and Triton source."""
