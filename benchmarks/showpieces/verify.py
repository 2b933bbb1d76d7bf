"""Verify showpieces in this process: values and gradients in float64 against their peers."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.driver import Results
from benchmarks.showpieces import programs
from benchmarks.showpieces.case import Showpiece
from benchmarks.showpieces.collection import SHOWPIECES

MODULES = {"torch": "torch", "jax": "jax", "keops": "pykeops"}
"""The module of each library."""
AGREE = 1e-9
"""Most that results in float64 may differ, relative to the largest element of each tensor."""


def drawn(piece: Showpiece, draw: random.Random) -> dict[str, int]:
    """Return random sizes, each between the least and the greatest small one."""
    return {n: draw.randint(min(x), max(x)) for n, x in piece.small.items()}


def verify(
    piece: Showpiece,
    sizes: Mapping[str, int],
    seed: int = 0,
    libraries: Collection[str] = tuple(MODULES),
    path: str | None = None,
) -> dict[str, float]:
    """Return how far each peer's values and gradients in float64 are from Einsmith's.

    Args:
        piece: operator
        sizes: of its inputs
        seed: of the inputs
        libraries: whose peers are compared; those that are absent are left out
        path: file of NumPy that gets cotangents, as seed000 .., and Einsmith's results, as wanted000 ..
    """
    arrays = programs.draw(piece, sizes, np.float64, seed)
    seeds = programs.cotangents([np.shape(y) for y in programs.values(piece, sizes, arrays)], np.float64)
    wanted, errors = programs.OfEinsmith(piece, sizes, arrays, seeds)(), dict[str, float]()
    if path is not None:
        kept: dict[str, Any] = {f"seed{n:03}": c for n, c in enumerate(seeds)}
        kept |= {f"wanted{n:03}": x for n, x in enumerate(wanted)}
        np.savez(path, **kept)
    for label, peer in piece.peers.items():
        if peer.library in libraries and find_spec(MODULES[peer.library]) is not None:
            if peer.library == "jax":
                import jax

                jax.config.update("jax_enable_x64", True)
            run = programs.of_peer(piece, peer, arrays, seeds)
            errors[f"{peer.library} {label}"] = programs.apart(run(), wanted)
    return errors


def fuzz(results: Results, names: Sequence[str], count: int, seed: int) -> int:
    """Verify operators at random sizes; return the exit status."""
    draw, failed = random.Random(seed), 0
    for n in range(count):
        name = draw.choice(names)
        sizes = drawn(SHOWPIECES[name], draw)
        try:
            errors = verify(SHOWPIECES[name], sizes, draw.randrange(2**31))
            words = {p: f"{e:.0e}" for p, e in errors.items() if not e <= AGREE}
        except Exception as e:
            words = {"einsmith": f"{type(e).__name__}: {e}"}
        failed += bool(words)
        if words:
            results.console.print(f"{n}: {name} {sizes}: {words}", markup=False)
    results.console.print(f"{count} operators at random sizes verified in float64, {failed} failed")
    return int(failed > 0)
