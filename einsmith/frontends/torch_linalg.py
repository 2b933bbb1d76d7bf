"""Decompose operators of PyTorch whose results depend on the layout of their operands.

Determinants save the LU factorization of their matrix for the backward. For a row-major matrix it is the factorization
of the transpose, since LAPACK is column-major.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _eliminate(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (packed L and U of a, or of its transpose if a is contiguous; the row exchanges)."""
    packed, pivots, _ = aten.linalg_lu_factor_ex(a.mT if a.is_contiguous() else a)
    return packed, pivots


def _odd(pivots: torch.Tensor) -> torch.Tensor:
    """Return whether the number of row exchanges is odd, for each matrix of a batch."""
    own = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return (pivots != own).sum(-1) % 2 == 1


def _apply_sign(x: torch.Tensor, pivots: torch.Tensor) -> torch.Tensor:
    return torch.where(_odd(pivots), -x, x)


def det(a: torch.Tensor) -> Any:
    """Decompose _linalg_det: return (the determinant, the packed L and U, the pivots).

    The determinant is the product of the diagonal with the sign of the row exchanges.
    """
    if a.is_complex():
        return NotImplemented
    packed, pivots = _eliminate(a)
    return _apply_sign(packed.diagonal(0, -2, -1).prod(-1), pivots), packed, pivots


def slogdet(a: torch.Tensor) -> Any:
    """Decompose _linalg_slogdet: return (the determinant's sign, log of its magnitude, packed L and U, the pivots)."""
    if a.is_complex():
        return NotImplemented
    packed, pivots = _eliminate(a)
    diagonal = packed.diagonal(0, -2, -1)
    return _apply_sign(diagonal.sign().prod(-1), pivots), diagonal.abs().log().sum(-1), packed, pivots


APART: dict[Any, Callable] = {aten._linalg_det.default: det, aten._linalg_slogdet.default: slogdet}
