"""How many threads a program inside PyTorch has. They are PyTorch's own (runtime/thread_count.py)."""

from __future__ import annotations

import torch

from einsmith.runtime.thread_count import get_threads


def threads() -> int:
    """How many threads a program inside PyTorch has: no more than either side's setting."""
    return min(get_threads(), torch.get_num_threads())
