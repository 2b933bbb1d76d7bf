"""Define how a program may round: the precision of its activations, and forms that round differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from einsmith.base.dtypes import DType, bf16, f16
from einsmith.base.errors import ArgumentError
from einsmith.base.precisions import PRECISIONS

STORED: dict[str, DType | None] = dict(zip(PRECISIONS, (None, None, bf16, f16), strict=True))
"""By precision, the type of 16 bits in which activations are stored; None for float32."""

SEPARATES: ContextVar[bool] = ContextVar("separate exponentials", default=False)
"""Whether what is traced and compiled may separate exponentials (`Numerics.separate_exponentials`)."""


@dataclass(frozen=True)
class Numerics:
    """How a program may round.

    winograd: convolutions may be computed in Winograd's form (`kernels.composite.winograd`)
    precision: "fp32"; "tf32" for products, on a graphics card, of operands that are rounded to 10 bits of mantissa;
        "bf16" or "fp16" for activations, and operands of products, of 16 bits (`passes.algebra.precision`)

    in_full: ids of the parameters whose products stay in float32
    separate_exponentials: exponentials of sums may be products of exponentials (`ir.rewrite.separate_exponentials`)

    Raises ArgumentError for another precision.
    """

    winograd: bool = False
    precision: str = "fp32"
    in_full: frozenset[int] = frozenset()
    separate_exponentials: bool = False

    def __post_init__(self) -> None:
        if self.precision not in STORED:
            raise ArgumentError(f"precision={self.precision!r} must be one of {', '.join(STORED)}")

    def by_name(self) -> dict[str, bool | str]:
        """Return the settings, by name, with which another program rounds equally; reports of faults contain them."""
        names = "winograd", "precision", "separate_exponentials"
        return {n: getattr(self, n) for n in names}

    @contextmanager
    def allowing(self) -> Iterator[None]:
        """Trace and compile inside the `with` block what these numerics allow."""
        token = SEPARATES.set(self.separate_exponentials)
        try:
            yield
        finally:
            SEPARATES.reset(token)

    @property
    def stored(self) -> DType | None:
        """The type of 16 bits in which activations are stored; None for float32."""
        return STORED[self.precision]


PLAIN = Numerics()
"""The numerics of programs that ask for nothing else."""
