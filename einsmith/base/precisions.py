"""Name the precisions of programs; the command line reads the names before it needs any type."""

from __future__ import annotations

PRECISIONS = ("fp32", "bf16", "fp16")
"""float32, or activations of 16 bits (`base.numerics`)."""
