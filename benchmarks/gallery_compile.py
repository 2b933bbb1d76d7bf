"""Cold costs of every gallery formula: python -m benchmarks.gallery_compile

For each entry of tests/gallery, float32, nothing cached: seconds of Python (tracing, differentiating by every float
input, passes, lowering) and of all until the first result of value and gradients is there, and the kernels.
Calibration comes before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

LIMIT, MEDIAN = 1.0, 0.3
"""Seconds: most for any entry, and in the median."""


def differentiated() -> Iterator[tuple[str, Any, tuple[np.ndarray, ...]]]:
    """(entry, the squares of its result with their gradients as a function, its arguments) of every entry."""
    import einsmith as es
    from tests.gallery.entries import ENTRIES

    rng = np.random.default_rng(0)
    for entry in ENTRIES:
        op = es.op(entry.formula, extents=entry.extents)
        given = entry.inputs(entry.cases[-1], rng)
        arrays = {n: given[n] for n in op.inputs}
        parameters = entry.parameters(entry.cases[-1])
        floats = [n for n, a in arrays.items() if a.dtype.kind == "f"]
        x = tuple(arrays[n].astype(np.float32) for n in floats)

        def f(*x, op=op, arrays=arrays, floats=floats, parameters=parameters):
            y = op(**{**arrays, **dict(zip(floats, x, strict=True))}, **parameters)
            return (y * y).sum()

        yield entry.name, es.value_and_grad(f, tuple(range(len(x)))), x


def measure() -> list[tuple[str, float, float, int]]:
    """(entry, seconds of tracing and differentiating, seconds to the first result, kernels) of every entry."""
    from einsmith.api.tracing import trace_call
    from einsmith.tuning.calibration import calibrate

    calibrate.target()
    out = []
    for name, both, x in differentiated():
        start = time.perf_counter()
        trace_call(both.traced, x, {})
        middle = time.perf_counter()
        both(*x)
        end = time.perf_counter()
        ((run, _),) = both._jitted._cache.values()
        out.append((name, middle - start, end - start, len(run.kernels)))
    return out


def main() -> int:
    argparse.ArgumentParser(description="Measures what compiling the gallery's formulas costs.").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EINSMITH_CACHE_DIR"] = folder
        rows = measure()
    table = Table("entry", "tracing and gradients, s", "first result, s", "kernels", title="gallery, cold")
    for name, python, total, kernels in sorted(rows, key=lambda r: -r[2]):
        table.add_row(name, f"{python:.3f}", f"{total:.3f}", str(kernels))
    Console().print(table)
    totals = [r[2] for r in rows]
    median = statistics.median(totals)
    print(json.dumps({"entries": len(rows), "median_s": round(median, 3), "max_s": round(max(totals), 3)}))
    return int(max(totals) > LIMIT or median > MEDIAN)


if __name__ == "__main__":
    sys.exit(main())
