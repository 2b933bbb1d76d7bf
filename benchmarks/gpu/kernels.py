"""Kernels of every kind at awkward sizes, on a card and by the reference evaluator in float64."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng

from benchmarks.gpu.launching import CardBench, uses_dots
from einsmith.base.errors import EinsmithError
from einsmith.gpu.tiles.lower import lower, patterns
from einsmith.gpu.tiles.operations import PRECISIONS
from einsmith.kernels.pattern import Lowered, describe
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import decisions
from tests.kernels.cover import SAMPLES
from tests.kernels.runner import reference
from tests.tiles.running import Held, close, data, functions_of, in_double, poisoned, tolerance
from tests.tiles.test_kernels import Case, cases, points, tilings

TOLERANCES = {"ieee": 0.0, "tf32x3": 0.0, "tf32": 5e-3, "bf16x3": 1e-4, "bf16": 2e-2}
"""Relative to the largest result, of products in each precision; 0: what sums of float32 leave."""
MOST_POINTS = 20_000
"""Points of a kernel that `--fake` runs in the configuration of the cost model, whose tiles are large."""


class Form(NamedTuple):
    """A way to run a case: a configuration, a precision, and whether the numbers are such that no product rounds."""

    what: str
    is_exact: bool
    precision: str
    kernel: Kernel
    lowered: Lowered
    warps: int
    stages: int


def names() -> list[str]:
    """Return the kinds of kernels."""
    return list(SAMPLES)


def prepare(bench: CardBench, samples: Sequence[str], most: int | None) -> None:
    """Compile what the kinds of kernels need, side by side. most: how many cases of each; None for all."""
    forms = [f for sample in samples for case in _cases(sample, most) for f in _forms(bench, case, [])]
    bench.compile([(f.lowered, f.warps, f.stages) for f in forms])


def check(bench: CardBench, sample: str, most: int | None) -> dict[str, Any]:
    """Return how many runs of a kind's cases there were, the largest error by precision, and what was wrong."""
    runs = 0
    wrong: list[str] = []
    refused: list[str] = []
    errors: dict[str, float] = {}
    for case in _cases(sample, most):
        rng = default_rng(zlib.crc32(str(case).encode()))
        for form in _forms(bench, case, refused):
            runs += 1
            where = f"{case}: {form.what}, {form.precision}"
            try:
                off, reason = _run(bench, form, case, rng)
            except EinsmithError as e:
                wrong.append(f"{where}: {type(e).__name__}: {_line(e)}")
                if is_lost(e):
                    raise
                continue
            errors[form.precision] = max(errors.get(form.precision, 0.0), off)
            if reason:
                wrong.append(f"{where}: {reason}")
    status = "wrong" if wrong else "ok" if runs else "not available"
    out = {"status": status, "runs": runs, "errors": errors, "wrong": wrong[:20], "refused": refused[:20]}
    return out | ({"reason": "no case can be lowered"} if not runs else {"reason": wrong[0]} if wrong else {})


__all__ = ["check", "describe", "is_lost", "names", "prepare"]


def _line(e: BaseException) -> str:
    return " ".join(str(e).split())[:400]


def is_lost(e: BaseException) -> bool:
    """Return whether the card's context is of no use after an error: an illegal access, say."""
    return getattr(e, "code", None) in range(700, 720)


def _cases(sample: str, most: int | None) -> list[Case]:
    return list(cases(sample))[:most]


def _forms(bench: CardBench, case: Case, refused: list[str]) -> Iterator[Form]:
    """Yield the cost model's configuration of a case in every precision, its dots in every precision where the model
    has none, and a small tiling in one of them, in turns in float64. Configurations that the library refuses are
    noted."""
    kernel = case.kernel
    assert kernel is not None
    number = zlib.crc32(str(case).encode())
    target: Any = bench.backend.target(1)
    texts = ["", *(f"tiled {p}" for p in ("contraction", "sweeps") if p in patterns(kernel))]
    for text in texts:
        has_dots = False
        for precision in PRECISIONS:
            try:
                choice = decisions.choice_of(kernel, replace(target, precision=precision), text)
                lowered = decisions.lower_choice(choice)
            except EinsmithError as e:
                refused.append(f"{case}: {precision}: {_line(e)}")
                break
            has_dots = uses_dots([x.function for x in lowered.launches])
            name = precision if has_dots else "ieee"
            config = choice.config
            yield Form(f"{choice.pattern.name} {config}", False, name, kernel, lowered, config.warps, config.stages)
            if not has_dots:
                break
        if has_dots:
            break
    able = patterns(kernel) if points(kernel) < MOST_POINTS else patterns(kernel)[:1]
    pattern = able[number % len(able)]
    made = in_double(kernel) if number // 2 % 2 else kernel
    precision = "ieee" if number // 2 % 2 else PRECISIONS[number // 4 % len(PRECISIONS)]
    tiling = replace(tilings(kernel)[number % 2], precision=precision)
    try:
        lowered = lower(made, tiling, pattern)
    except EinsmithError as e:
        refused.append(f"{case}: {tiling}: {_line(e)}")
        return
    name = precision if uses_dots([x.function for x in lowered.launches]) else "ieee"
    yield Form(f"{pattern} {tiling}", True, name, made, lowered, 4, 3)


def _run(bench: CardBench, form: Form, case: Case, rng: np.random.Generator) -> tuple[float, str]:
    """Run a form on random data; return its largest error relative to the largest result, and what is wrong: an error
    that is too large, or bytes that change and are not the results'."""
    kernel = form.kernel
    base = data(kernel, rng, case.limits)
    if not form.is_exact:
        for n, b in enumerate(kernel.buffers):
            base[n] = b.dtype.narrow(rng.standard_normal(b.shape)) if b.dtype.is_float else base[n]
    with np.errstate(all="ignore"):
        want = reference(kernel, base)
    functions_of(form.lowered)
    held = Held(kernel.buffers, poisoned(kernel, base, want), form.lowered.workspace)
    ready = bench.place(form.lowered, form.warps, form.stages, held.raw, held.workspace)
    bench.run(ready.nodes)
    for raw, block in zip(held.raw, ready.blocks, strict=False):
        bench.read(block, raw)
    got = [held.array(n) for n in range(len(kernel.buffers))]
    worst = max((_error(got[n], x, kernel.buffers[n].dtype) for n, x in want.items()), default=0.0)
    tol = max(tolerance(kernel), TOLERANCES[form.precision])
    try:
        held.check_gaps()
        for n, b in enumerate(kernel.buffers):
            if n in want:
                close(got[n], want[n], b.dtype, tol, None, f"buffer {n}")
            else:
                np.testing.assert_array_equal(got[n], base[n], err_msg=f"buffer {n}, which is not written")
    except AssertionError as e:
        return worst, _line(e)
    return worst, ""


def _error(got: np.ndarray, want: np.ndarray, dtype: Any) -> float:
    if not dtype.is_float or not got.size:
        return 0.0
    found, exact = dtype.wide(got).astype(np.float64), dtype.rounded(want).astype(np.float64)
    finite = np.isfinite(found) & np.isfinite(exact)
    scale = np.max(np.abs(exact[finite]), initial=1.0)
    return float(np.max(np.abs(found[finite] - exact[finite]), initial=0.0) / scale)
