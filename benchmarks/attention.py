"""Attention under masks beside PyTorch: python -m benchmarks.attention [--masks M,...] [--all] [--threads N]

Output and all gradients, as training needs them. Heads are verified in float64 before anything is timed. PyTorch's
best is the faster of scaled_dot_product_attention, where it can express the mask, and the mathematical form.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.attention_problems import HEADS, LENGTHS, MASKS, WIDTHS, attention, draw
from benchmarks.report import QUICK, run


def fit(problem: Any, peers: list[str]) -> list[str]:
    """Return the peers that can run a problem: the scores fit into memory."""
    from benchmarks.peers.torch_attention import variants

    return [p for p in peers if p == "einsmith" or variants(problem, p)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--masks", default=",".join(MASKS))
    for name in ("lengths", "heads", "widths"):
        parser.add_argument(f"--{name}", type=int, action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=8)
    args, others = parser.parse_known_args(argv)
    masks = args.masks.split(",")
    lengths = args.lengths or (LENGTHS if args.all else (256, 1024))
    heads, widths = args.heads or (HEADS if args.all else (8,)), args.widths or (WIDTHS if args.all else (64,))
    if not set(masks) <= set(MASKS) or min(*lengths, *heads, *widths, args.count, 2) < 1:
        parser.error(f"--masks are of {', '.join(MASKS)}; --lengths, --heads, --widths and --count are at least 1")
    cases = [attention(m, t, n, d) for t in lengths for n in heads for d in widths for m in masks]
    if args.seed is not None:
        cases = [draw(args.seed, n) for n in range(args.count)]
    title = f"""Times attention under masks, forward and backward. Cases: --masks of {",".join(MASKS)}; --lengths,
        --heads and --widths, which can be repeated; --all; or --count that are drawn from --seed."""
    return run(title, {c.name: c for c in cases}, others, ("torch", "compile"), fit, defaults=QUICK)


if __name__ == "__main__":
    sys.exit(main())
