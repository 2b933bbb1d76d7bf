"""Choose the number of threads of a program inside PyTorch. They are PyTorch's own (runtime/thread_count.py)."""

from __future__ import annotations

import torch

from einsmith.runtime.thread_count import get_threads


def threads() -> int:
    """Return the number of threads of a program inside PyTorch: the smaller one of both sides' settings."""
    return min(get_threads(), torch.get_num_threads())
