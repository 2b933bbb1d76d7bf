"""Time operators of papers with their gradients beside PyTorch: python -m tests.papers.speed [name ...] --json FILE

An operator's formula and its PyTorch program are those of this folder; here it has sizes at which it is used. One
program of Einsmith gives values and gradients by every float input for random cotangents. PyTorch runs the same eagerly
and by torch.compile, unless its program is a loop of Python over steps, which torch.compile would unroll; of linear
recurrences, also the form in chunks that is published beside them, either way. The other programs are written to check
the formulas, from PyTorch's operators; some of them could be made faster by hand. Results are compared first. Then all
take turns on one thread, and the fastest turn counts, in seconds of the processor: other work on the machine adds least
to these. docs/gallery.md shows the figures of docs/gallery.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from einsmith.bench.compare import machine

SIZES: dict[str, dict[str, int]] = {
    "splines of Kolmogorov-Arnold networks": {"b": 256, "n": 64, "o": 64},
    "gated linear units": {"b": 16, "t": 126, "c": 128, "k": 128},
    "causal linear attention as a recurrence": {"t": 512, "d": 32, "c": 32},
    "attention-free transformer, full": {"n": 256, "d": 128},
    "delta rule": {"t": 512, "d": 64, "c": 64},
    "gated delta rule": {"t": 512, "d": 64, "c": 64},
    "gated linear attention": {"t": 512, "d": 64, "c": 64},
    "additive attention": {"b": 8, "i": 64, "j": 64, "d": 64, "c": 64, "h": 64},
    "talking heads": {"h": 8, "g": 8, "i": 128, "j": 128, "d": 64},
    "dilated sliding windows": {"n": 1024, "d": 64},
    "differential attention": {"i": 256, "n": 256, "d": 64},
    "neighbourhood attention": {"n": 2048, "d": 64},
    "dynamic routing, three iterations": {"b": 8, "i": 128, "j": 10, "d": 16},
    "votes of matrix capsules": {"b": 32, "i": 32, "j": 32},
    "partial convolution": {"b": 8, "c": 32, "k": 32, "h": 32, "w": 32},
    "pixel-adaptive convolution": {"b": 2, "c": 32, "d": 8, "k": 32, "h": 32, "w": 32},
    "locally connected layer": {"b": 16, "c": 16, "k": 32, "h": 16, "w": 16},
    "cost volume of a stereo pair": {"b": 2, "c": 32, "h": 64, "w": 64},
    "max-plus convolution": {"b": 8, "h": 128, "w": 128},
    "neural tensor network": {"b": 128, "d": 64, "k": 32},
    "compressed interactions": {"b": 64, "h": 16, "m": 16, "n": 16, "d": 32},
    "edge convolution": {"n": 1024, "d": 16, "k": 64},
    "equivariant graph layer": {"n": 128, "f": 16, "k": 32},
    "triangle updates of pairs": {"n": 64, "d": 32, "c": 32},
    "Chamfer distance": {"b": 4, "m": 512, "n": 512},
    "NT-Xent": {"n": 256, "d": 64},
    "modulated and demodulated convolution": {"b": 16, "c": 64, "k": 64, "w": 64},
    "selective scan": {"b": 4, "t": 128, "d": 64, "n": 16},
    "soft dynamic time warping": {"m": 32, "n": 32, "d": 8},
    "Lennard-Jones energy": {"n": 512},
    "Gray-Scott reaction and diffusion": {"h": 128, "w": 128},
    "bilateral filter": {"h": 128, "w": 128},
    "volume rendering": {"b": 1024, "n": 64},
}
"""Extents by the letters of the inputs' shapes."""

LOOPS = {"delta rule", "gated delta rule", "gated linear attention", "selective scan", "soft dynamic time warping"}
"""Operators whose PyTorch program is a loop of Python over steps."""

SCALES = {"delta rule": 0.2, "talking heads": 0.3, "soft dynamic time warping": 0.1}
"""Factors of the normally distributed inputs, without which a recurrence or an exponential grows beyond float32."""


def _attention(T: Any, q: Any, k: Any, v: Any, length: int = 64) -> Any:
    """The causal linear attention of the collection, whose weights are sums of products of exponentials, in chunks."""
    a, b = ((0.5 * x).exp().unflatten(0, (-1, length)) for x in (q, k))
    w = T.cat([v, T.ones_like(v[:, :1])], 1).unflatten(0, (-1, length))
    added = b.mT @ w
    y = (a @ b.mT).tril() @ w + a @ (added.cumsum(0) - added)
    return (y[..., :-1] / y[..., -1:]).flatten(0, 1)


def _delta(T: Any, q: Any, k: Any, v: Any, b: Any, a: Any = None) -> Any:
    from benchmarks.peers import chunks

    g = T.zeros_like(b) if a is None else a.log()
    scaled = q * k.shape[1] ** 0.5
    return chunks.gated_delta_rule(*(x[:, None] for x in (scaled, k, v, g, b)))[:, 0]


def _gated(T: Any, q: Any, k: Any, v: Any, a: Any) -> Any:
    from benchmarks.peers import chunks

    scaled = q * k.shape[1] ** 0.5
    return chunks.gated_linear_attention(*(x[:, None] for x in (scaled, k, v, a.log())), length=16)[:, 0]


CHUNKS: dict[str, Callable] = {
    "causal linear attention as a recurrence": _attention,
    "delta rule": _delta,
    "gated delta rule": _delta,
    "gated linear attention": _gated,
}
"""Published forms in chunks of linear recurrences, called as their programs are."""

TURNS, TURN_SECONDS = 15, 0.04
TOLERANCE = 2e-3
"""Largest difference of float32 results, relative to a tensor's largest element."""


def problem(name: str) -> Any:
    """Return the operator of a paper at its size here."""
    from tests.papers.collection import OPERATORS

    (op,) = (o for o in OPERATORS if o.name == name)
    return replace(op, sizes={**op.sizes, **{a: (n,) * 3 for a, n in SIZES[name].items()}})


def programs(op: Any) -> dict[str, Callable[[], list[np.ndarray]]]:
    """Return what computes values and gradients, by library."""
    import torch

    import einsmith as es

    rng = np.random.default_rng(0)
    scale = SCALES.get(op.name, 1.0)
    factors = {n: scale if "|" not in text else 1.0 for n, text in op.inputs.items()}
    made = op.arrays(0, rng)
    arrays = {n: (factors[n] * a).astype(np.float32) if a.dtype.kind == "f" else a for n, a in made.items()}
    floats = [n for n, a in arrays.items() if a.dtype.kind == "f"]
    formula = es.op(op.text, extents=dict(op.extents))

    def forward(*x: Any) -> Any:
        return formula(**{**arrays, **dict(zip(floats, x, strict=True))}, **op.parameters)

    tensors = {n: torch.from_numpy(np.array(a)) for n, a in arrays.items()}
    leaves = [tensors[n].requires_grad_() for n in floats]

    def called(f: Callable) -> Callable[..., tuple[Any, ...]]:
        def values(*x: Any) -> tuple[Any, ...]:
            y = f(torch, **{**tensors, **dict(zip(floats, x, strict=True))}, **op.parameters)
            return y if isinstance(y, tuple) else (y,)

        return values

    values = called(op.twin)
    shapes = [tuple(y.shape) for y in values(*leaves)]
    cotangents = tuple(rng.standard_normal(s, np.float32) for s in shapes)

    @es.jit
    def together(c: Any, x: tuple[Any, ...]) -> tuple[Any, Any]:
        y, pullback = es.vjp(forward, *x)
        return y, pullback(c)

    def einsmith() -> list[np.ndarray]:
        c = cotangents if len(cotangents) > 1 else cotangents[0]
        y, grads = together(c, tuple(arrays[n] for n in floats))
        return [*(y if isinstance(y, tuple) else (y,)), *grads]

    given = [torch.from_numpy(c) for c in cotangents]

    def by(f: Callable) -> Callable[[], list[np.ndarray]]:
        def run() -> list[np.ndarray]:
            y = f(*leaves)
            used = [(a, c) for a, c in zip(y, given, strict=True) if a.requires_grad]
            grads = torch.autograd.grad([a for a, _ in used], leaves, [c for _, c in used], allow_unused=True)
            filled = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True))
            return [a.numpy(force=True) for a in (*y, *filled)]

        return run

    out = {"einsmith": einsmith, "PyTorch": by(values)}
    if op.name not in LOOPS:
        torch._dynamo.reset()  # or it would take operators for one function that is called with changing shapes
        out["torch.compile"] = by(torch.compile(values, dynamic=False))
    if op.name in CHUNKS:
        torch._dynamo.reset()
        chunked = called(CHUNKS[op.name])
        out |= {"chunks": by(chunked), "chunks, torch.compile": by(torch.compile(chunked, dynamic=False))}
    return out


def difference(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> float:
    """Return the largest difference of two lists of arrays, relative to each array's largest element; NaN where
    there is one."""
    pairs = zip(got, want, strict=True)
    return float(np.max([np.abs(g - w).max(initial=0) / np.maximum(1e-30, np.abs(w).max(initial=0)) for g, w in pairs]))


def measure(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return processor seconds of a call of each: those of its fastest turn."""
    counts = {}
    for name, run in runs.items():
        start = time.process_time()
        run()
        counts[name] = max(1, round(TURN_SECONDS / max(1e-6, time.process_time() - start)))
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(counts[name]):
                run()
            best[name] = min(best[name], (time.process_time() - start) / counts[name])
    return best


def row(name: str) -> dict[str, Any]:
    """Return what is recorded of an operator: milliseconds by library, and the largest difference of results.

    Raises SystemExit where the results of two libraries differ."""
    op = problem(name)
    runs = programs(op)
    want = runs["PyTorch"]()
    off = {peer: difference(run(), want) for peer, run in runs.items() if peer != "PyTorch"}
    wrong = {peer: d for peer, d in off.items() if not d <= TOLERANCE}
    if wrong:
        raise SystemExit(f"{name}: results differ from PyTorch's by {wrong}")
    milliseconds = {peer: round(1e3 * s, 4) for peer, s in measure(runs).items()}
    return {"sizes": SIZES[name], "ms": milliseconds, "difference": off["einsmith"]}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help="operators, by default all")
    parser.add_argument("--json", type=Path, required=True, help="file of results; operators that it has are kept")
    args = parser.parse_args(argv)
    unknown = [n for n in args.names if n not in SIZES]
    if unknown:
        parser.error(f"there are no operators {', '.join(unknown)}; there are {', '.join(SIZES)}")
    import torch

    import einsmith as es

    torch.set_num_threads(1)
    es.set_threads(1)
    results = json.loads(args.json.read_text()) if args.json.exists() else {"operators": {}}
    results["machine"] = machine()
    for name in args.names or SIZES:
        if name in results["operators"] and not args.names:
            continue
        results["operators"][name] = found = row(name)
        args.json.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{name:50}", *(f"{peer} {ms:.3f} ms" for peer, ms in found["ms"].items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
