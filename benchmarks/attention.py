"""Attention under masks beside PyTorch: python -m benchmarks.attention [--masks M,...] [--all] [--threads N]

Output and all gradients, as training needs them. Heads are verified in float64 before anything is timed. PyTorch's
best is the faster of scaled_dot_product_attention, where it can express the mask, and the mathematical form.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import chosen_cases
from benchmarks.attention_problems import HEADS, LENGTHS, MASKS, WIDTHS, Attention, attention, draw
from benchmarks.problem import Workload

PEERS = ("torch", "compile")
QUICK_SECONDS = 210.0
"""No quick case begins after this time."""


def fit(problem: Workload, peers: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the peers that can run a problem, and a word on each of the others."""
    from benchmarks.peers.torch_attention import MOST_BYTES, variants

    assert isinstance(problem, Attention)
    fitting = [p for p in peers if variants(problem, p)]
    return fitting, [f"{p}: the scores take over {MOST_BYTES / 1e9:g} GB" for p in peers if p not in fitting]


def main(argv: Sequence[str] | None = None) -> int:
    parser = chosen_cases.parser("Times attention under masks, forward and backward.", PEERS)
    parser.add_argument("--masks", default="", help=f"comma-separated: {', '.join(MASKS)}")
    parser.add_argument("--lengths", type=int, action="append", help=f"can be repeated; {LENGTHS}, quick: 256, 1024")
    parser.add_argument("--heads", type=int, action="append", help=f"batch x heads; {HEADS}, quick: 8")
    parser.add_argument("--widths", type=int, action="append", help=f"can be repeated; {WIDTHS}, quick: 64")
    args = parser.parse_args(argv)
    masks = args.masks.split(",") if args.masks else MASKS
    if not set(masks) <= set(MASKS):
        parser.error(f"--masks are of {', '.join(MASKS)}")
    lengths = args.lengths or (LENGTHS if args.all else (256, 1024))
    heads, widths = args.heads or (HEADS if args.all else (8,)), args.widths or (WIDTHS if args.all else (64,))
    if min(*lengths, *heads, *widths, 2) < 1:
        parser.error("--lengths, --heads and --widths are at least 1")
    cases = [attention(m, t, n, d) for t in lengths for n in heads for d in widths for m in masks]
    if args.seed is not None:
        cases = [draw(args.seed, n) for n in range(args.count)]
    return chosen_cases.run(args, parser, cases, PEERS, fit, QUICK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
