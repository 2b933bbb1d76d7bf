"""Define how a program may round: the precision of its activations, and forms that round differently."""

from __future__ import annotations

from dataclasses import dataclass

from einsmith.base.dtypes import DType, bf16, f16
from einsmith.base.errors import ArgumentError
from einsmith.base.precisions import PRECISIONS

STORED: dict[str, DType | None] = dict(zip(PRECISIONS, (None, None, bf16, f16), strict=True))
"""By precision, the type of 16 bits in which activations are stored; None for float32."""


@dataclass(frozen=True)
class Numerics:
    """How a program may round.

    winograd: convolutions may be computed in Winograd's form (`kernels.composite.winograd`)
    precision: "fp32"; "tf32" for products, on a graphics card, of operands that are rounded to 10 bits of mantissa;
        "bf16" or "fp16" for activations, and operands of products, of 16 bits (`passes.algebra.precision`)

    in_full: ids of the parameters whose products stay in float32

    Raises ArgumentError for another precision.
    """

    winograd: bool = False
    precision: str = "fp32"
    in_full: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.precision not in STORED:
            raise ArgumentError(f"precision={self.precision!r} must be one of {', '.join(STORED)}")

    def by_name(self) -> dict[str, bool | str]:
        """Return the settings, by name, with which another program rounds equally; reports of faults contain them."""
        return {"winograd": self.winograd, "precision": self.precision}

    @property
    def stored(self) -> DType | None:
        """The type of 16 bits in which activations are stored; None for float32."""
        return STORED[self.precision]


PLAIN = Numerics()
"""The numerics of programs that ask for nothing else."""
