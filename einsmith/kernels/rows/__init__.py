"""Row-block fused kernels."""
