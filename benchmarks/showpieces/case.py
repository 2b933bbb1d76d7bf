"""What an operator of the gallery is: its formula, its inputs, and the programs that it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import einsmith as es

FIELDS = "language", "speech", "vision", "chemistry", "physics", "graphs"
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Peer:
    """A form of an operator in another library.

    Args:
        f: function of tensors in the order of the inputs; gives a tensor or a tuple of them
        source: where the form is published
        compiles: whether torch.compile measures it as well; a loop over many steps is unrolled, and takes minutes
        library: "torch", "jax" (measured under jax.jit) or "keops"
    """

    f: Callable[..., Any]
    source: str
    compiles: bool = True
    library: str = "torch"


@dataclass(frozen=True)
class Showpiece:
    """An operator of the gallery.

    Args:
        name: as the field calls it
        area: one of FIELDS
        source: paper, with authors, year and equation
        formula: as the paper defines it, without any rewriting for speed
        arrays: function of a generator and sizes that gives the inputs by name, floats in float64; floats that are
            neither in `constant` nor in `known` have gradients
        sizes: sizes at which the operator is measured, by label; the gallery shows the first
        small: three values of each size, awkward ones (1, primes, vector widths and their neighbours), for tests
        peers: forms in other libraries by label, in their best vectorised form, written from their papers
        constant: names of floating-point inputs without a gradient
        known: names of inputs that never change, which Einsmith gets as es.constant
        extents: function of sizes that gives the extents of axes that no input has
        build: function of sizes that gives the operator where it is more than one formula (derivatives inside, say);
            `formula` is what the gallery shows then
        options: further arguments of es.op, such as `checkpoint`
        settings: further arguments of es.jit, by which it is compiled
        limit: what bounds the speed-up, in a sentence, where a peer is at its floor as well
    """

    name: str
    area: str
    source: str
    formula: str
    arrays: Callable[..., dict[str, np.ndarray]]
    sizes: Mapping[str, Sizes]
    small: Mapping[str, tuple[int, int, int]]
    peers: Mapping[str, Peer]
    constant: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    extents: Callable[[Sizes], dict[str, Any]] = lambda sizes: {}
    build: Callable[[Sizes], Callable[..., Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    limit: str = ""

    def operator(self, sizes: Sizes) -> Callable[..., Any]:
        """Return the operator as a function of the inputs in the order of `arrays`."""
        if self.build is not None:
            return self.build(sizes)
        names = ", ".join(self.arrays(np.random.default_rng(0), **sizes))
        return es.op(self.formula, inputs=names, extents=self.extents(sizes), **self.options)
