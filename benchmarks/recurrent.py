"""Recurrent networks, Einsmith and its peers side by side: python -m benchmarks.recurrent [network ...]

One training step (forward, backward, update) of MI-LSTM, SC-RNN, subLSTM and LLTM, a single step and over 28, 35 and
150 steps, and of an LSTM language model. With --first-calls instead: how long the first call takes at 8, 128 and 1024
steps, with the number of Einsmith's kernels and the size of their code; the exit status is 1 where these depend on how
many steps there are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from benchmarks.driver import Verdicts
from benchmarks.recurrent_steps import FIRST_CALLS, RECURRENT, RECURRENT_PEERS
from benchmarks.report import run


def steady(cells: Mapping[str, dict]) -> Verdicts:
    """Return whether every cell has one number of kernels and one size of code in its loops at all numbers of steps,
    and one of all code but for the tiles that kernels outside of loops choose by their extents: a quarter."""
    by_cell: dict[str, list[dict]] = {}
    for problem, cell in cells.items():
        ours = cell["peers"].get("einsmith", {})
        if "kernels" in ours:
            by_cell.setdefault(problem.partition("-")[0], []).append(ours)
    growing = [
        name
        for name, rows in by_cell.items()
        if len({(r["kernels"], r["loop_bytes"]) for r in rows}) > 1
        or max(r["code_bytes"] for r in rows) > 1.25 * min(r["code_bytes"] for r in rows)
    ]
    return [("cells whose code grows with the steps", ", ".join(growing) or "none", "none", not growing)]


def main(argv: Sequence[str] | None = None) -> int:
    """Time training steps, or with --first-calls first calls; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--first-calls" not in arguments:
        return run("Times one training step (SGD) of recurrent networks.", RECURRENT, arguments, RECURRENT_PEERS)
    arguments.remove("--first-calls")
    title, more = "Times the first training step of recurrent networks.", {"cap": 300.0}
    return run(title, FIRST_CALLS, arguments, RECURRENT_PEERS, verdicts=steady, defaults=more, is_of_first_calls=True)


if __name__ == "__main__":
    sys.exit(main())
