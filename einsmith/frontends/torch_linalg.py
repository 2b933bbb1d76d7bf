"""Operators of PyTorch taken apart where what they give depends on how their operands lie in memory.

Determinants keep the elimination of their matrix for the backward, and that is of the transpose where memory has rows,
since LAPACK takes columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _eliminated(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(L and U of a or of its transpose, the exchanges of rows)."""
    packed, pivots, _ = aten.linalg_lu_factor_ex(a.mT if a.is_contiguous() else a)
    return packed, pivots


def _odd(pivots: torch.Tensor) -> torch.Tensor:
    """Whether the exchanges of rows are odd in number."""
    own = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return (pivots != own).sum(-1) % 2 == 1


def _signed(x: torch.Tensor, pivots: torch.Tensor) -> torch.Tensor:
    return torch.where(_odd(pivots), -x, x)


def det(a: torch.Tensor) -> Any:
    """_linalg_det: (the product of the diagonal, with the sign of the exchanges, the elimination, its pivots)."""
    if a.is_complex():
        return NotImplemented
    packed, pivots = _eliminated(a)
    return _signed(packed.diagonal(0, -2, -1).prod(-1), pivots), packed, pivots


def slogdet(a: torch.Tensor) -> Any:
    """_linalg_slogdet: (the determinant's sign, the logarithm of its magnitude, the elimination, its pivots)."""
    if a.is_complex():
        return NotImplemented
    packed, pivots = _eliminated(a)
    diagonal = packed.diagonal(0, -2, -1)
    return _signed(diagonal.sign().prod(-1), pivots), diagonal.abs().log().sum(-1), packed, pivots


APART: dict[Any, Callable] = {aten._linalg_det.default: det, aten._linalg_slogdet.default: slogdet}
