"""Measure Einsmith on an NVIDIA card, and compare it with PyTorch and JAX.

    python -m benchmarks.gpu --out FILE [--parts a,b] [--seconds 540] [--wheels DIR]
    python -m benchmarks.gpu --report FILE [--plot FILE.png] [--docs]

The parts, in this order: facts, kernels, steps, coefficients, models, regret, dynamic. FILE is written after each item,
and what it holds is not run again: run the command as often as it says that something is left. With --fake an
interpreter takes the place of the card, at tiny sizes: times mean nothing then.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.gpu import packages

PARTS = ("facts", "kernels", "steps", "coefficients", "models", "regret", "dynamic")
LEFT = 3
"""Exit status where the time did not suffice."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 where it failed, LEFT where parts are left for another run."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="file of the results; one that exists is continued")
    parser.add_argument("--parts", type=_names, default=PARTS, help="only these, comma-separated")
    parser.add_argument("--seconds", type=float, default=540.0, help="time budget (default: 540)")
    parser.add_argument("--models", type=_names, default=(), help="only these networks")
    parser.add_argument("--kernels", type=_names, default=(), help="only these kinds of kernels")
    parser.add_argument("--batches", type=_numbers, default=(), help="batch sizes (default: 16,64,1)")
    parser.add_argument("--precisions", type=_names, default=(), help="default: tf32,bf16,fp32")
    parser.add_argument("--peers", type=_names, default=None, help="default: torch,torch-graph,compile,jax")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds that a peer may take to compile a step")
    parser.add_argument("--wheels", type=Path, help="folder of wheels, for packages that are missing")
    parser.add_argument("--fake", action="store_true", help="an interpreter in the place of the card, tiny sizes")
    parser.add_argument("--report", type=Path, metavar="FILE", help="print the tables of a file, and draw its ratios")
    parser.add_argument("--plot", type=Path, help="where the report draws (default: beside FILE)")
    parser.add_argument("--docs", action="store_true", help="also write the page gpu-figures of docs, of a real run")
    options = parser.parse_args(argv)
    if (options.out is None) == (options.report is None):
        parser.error("name a file by --out, or by --report")
    needed = (*packages.NEEDED, *(packages.DRAWING if options.report else () if options.fake else packages.ON_CARDS))
    try:
        installed = packages.provide(needed, options.wheels)
    except packages.MissingError as e:
        print(f"benchmarks.gpu: {e}", file=sys.stderr)
        return 1
    if installed:
        print(f"installed: {', '.join(installed)}", flush=True)
    from benchmarks.gpu.record import RecordError

    try:
        if options.report:
            from benchmarks.gpu import report

            return report.show(options.report, options.plot, options.docs)
        return _run(parser, options, " ".join(["python -m benchmarks.gpu", *(sys.argv[1:] if argv is None else argv)]))
    except RecordError as e:
        print(f"benchmarks.gpu: {e}", file=sys.stderr)
        return 1


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, command: str) -> int:
    from benchmarks.gpu import compare, parts, problems
    from benchmarks.gpu.kernels import names as kinds
    from benchmarks.gpu.record import Deadline, OutOfTime, Record

    choices = {
        "parts": PARTS,
        "models": problems.names(),
        "kernels": kinds() if options.kernels else (),
        "precisions": problems.PRECISIONS,
        "peers": compare.PEERS,
    }
    options.models = options.models or tuple(problems.names())
    options.batches = options.batches or problems.BATCHES
    options.precisions = options.precisions or problems.PRECISIONS
    options.peers = compare.PEERS if options.peers is None else options.peers
    for option, known in choices.items():
        if unknown := [n for n in getattr(options, option) if n not in known]:
            parser.error(f"--{option}: unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    deadline, record = Deadline(options.seconds), Record(options.out)

    def say(text: str) -> None:
        print(f"[{options.seconds - deadline.left:5.0f} s] {text}", flush=True)

    run = parts.Run(options, record, deadline, say)
    try:
        card = run.ours.ask("facts", limit=120)
        if card["status"] != "ok":
            print(f"benchmarks.gpu: there is no card to measure: {card['reason']}", file=sys.stderr)
            return 1
        about = {
            "card": card["card"],
            "fake": options.fake,
            "date": time.strftime("%Y-%m-%d"),
            "command": command,
            "versions": packages.versions(),
        }
        record.begin(about)
        for name in PARTS:
            if name in options.parts:
                parts.PARTS[name](run)
    except OutOfTime:
        say(f"the time is over; run the command again with --out {options.out} to go on")
        return LEFT
    finally:
        run.close()
    say(f"done: {options.out}")
    return 0


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)


if __name__ == "__main__":
    sys.exit(main())
