"""Kernels built from kernels: col2im, Winograd's form, split axes."""
