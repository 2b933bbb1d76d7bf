"""Name the precisions of programs; the command line reads the names before it needs any type."""

from __future__ import annotations

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""float32, float32 with products of operands that are rounded to tf32 (on a graphics card), or activations of 16 bits
(`base.numerics`)."""
KEPT = ("bf16", "int8")
"""The types in which frozen weights may be kept (`es.nn.freeze`)."""
