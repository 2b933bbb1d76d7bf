"""Attention under masks beside PyTorch: python -m benchmarks.attention [--masks M,...] [--all] [--threads N]

Output and all gradients, as training needs them. Heads are verified in float64 before anything is timed. PyTorch's
best is the faster of scaled_dot_product_attention, where it can express the mask, and the mathematical form.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.driver import Options
from benchmarks.problem import Workload
from benchmarks.report import QUICK, run

MASKS = ("none", "causal", "window", "documents", "alibi", "softcap")
LENGTHS, HEADS, WIDTHS = (64, 256, 1024, 2048, 4096, 8192), (1, 8, 64), (32, 64, 80, 128)
WINDOW, DOCUMENTS, CAP, SLOPE = 128, 4, 20.0, 0.0625
"""Keys that a query of the sliding window sees, itself included; documents of equal length in a sequence; bound of the
scores that are soft-capped; ALiBi's score for each position of distance."""
SAMPLE_ELEMENTS = 2**28
"""Scores that the float64 reference computes at most, of whole heads: the last ones; one head at least."""
_NAME = re.compile(r"attention-(\w+)-t(\d+)-n(\d+)-d(\d+)")


@dataclass(frozen=True)
class Attention(Workload):
    """Attention of `heads` (batch x heads) sequences of `length` positions, with `width` features. All but "none" and
    "softcap" are causal."""

    kind = "attention"
    has_reference = True

    length: int = 0
    heads: int = 0
    width: int = 0

    @property
    def verified_heads(self) -> int:
        """How many heads, the last ones, are verified: a head's results depend on no other head."""
        return max(1, min(self.heads, SAMPLE_ELEMENTS // self.length**2))


def document_length(length: int) -> int:
    """Positions of a document."""
    return -(-length // DOCUMENTS)


def allowed_pairs(mask: str, length: int) -> int:
    """Pairs of a query and a key that a mask allows, of one head."""
    if mask in ("none", "softcap"):
        return length * length
    seen = np.arange(1, length + 1)
    if mask == "window":
        seen = np.minimum(seen, WINDOW)
    elif mask == "documents":
        seen = np.arange(length) % document_length(length) + 1
    return int(seen.sum())


def attention(mask: str, length: int, heads: int, width: int) -> Attention:
    """The problem. Floor: two products forward and five backward (the scores are computed again; Dao et al. 2022,
    FlashAttention, algorithm 4) over the allowed pairs."""

    def make() -> dict[str, np.ndarray]:
        rng = np.random.default_rng(23)
        return {n: rng.standard_normal((heads, length, width), np.float32) for n in "QKVG"}

    name, flops = f"attention-{mask}-t{length}-n{heads}-d{width}", 7 * 2 * heads * width * allowed_pairs(mask, length)
    sizes: dict[str, Any] = {"length": length, "heads": heads, "width": width}
    results, inputs = ("O", "dQ", "dK", "dV"), ("Q", "K", "V")
    return Attention(name, mask, heads, flops, results, make, training=False, inputs=inputs, **sizes)


def named(name: str) -> Attention | None:
    """The problem of that name; None where it is no attention's."""
    match = _NAME.fullmatch(name)
    return attention(match[1], int(match[2]), int(match[3]), int(match[4])) if match else None


def draw(seed: int, number: int) -> Attention:
    """Case `number` of a seed: lengths of 16 to 2048, 1 to 64 heads, of at most 2^27 scores."""
    rng = np.random.default_rng((seed, number))
    while True:
        length, heads, width = (
            int(np.exp(rng.uniform(np.log(a), np.log(b)))) for a, b in ((16, 2049), (1, 65), (8, 129))
        )
        if heads * length**2 <= 2**27:
            return attention(MASKS[int(rng.integers(len(MASKS)))], length, heads, width)


def verified(problem: Attention, results: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The results of the verified heads."""
    return {n: r[-problem.verified_heads :] for n, r in zip(problem.results, results, strict=True)}


def fit(problem: Any, peers: list[str]) -> list[str]:
    """Return the peers that can run a problem: the scores fit into memory."""
    from benchmarks.peers.torch_attention import variants

    return [p for p in peers if p == "einsmith" or variants(problem, p)]


def cases(args: argparse.Namespace) -> dict[str, Attention]:
    """Return the problems that the arguments ask for. Raises ValueError."""
    masks = args.masks.split(",")
    lengths = args.lengths or (LENGTHS if args.all else (256, 1024))
    heads, widths = args.heads or (HEADS if args.all else (8,)), args.widths or (WIDTHS if args.all else (64,))
    if not set(masks) <= set(MASKS) or min(*lengths, *heads, *widths, args.count, 2) < 1:
        raise ValueError(f"--masks are of {', '.join(MASKS)}; --lengths, --heads, --widths and --count are at least 1")
    chosen = [attention(m, t, n, d) for t in lengths for n in heads for d in widths for m in masks]
    if args.seed is not None:
        chosen = [draw(args.seed, n) for n in range(args.count)]
    return {c.name: c for c in chosen}


OPTIONS: Options = {
    "all": (False, "all lengths, heads and widths"), "masks": (",".join(MASKS), "comma-separated"),
    "lengths": ([int], "positions of a sequence"), "heads": ([int], "of all sequences together"),
    "widths": ([int], "features of a head"), "seed": (int, "draw the cases"), "count": (8, "how many are drawn"),
}  # fmt: skip

if __name__ == "__main__":
    title = "Times attention under masks, forward and backward."
    sys.exit(run(title, cases, None, ("torch", "compile"), fit, defaults=QUICK, options=OPTIONS))
