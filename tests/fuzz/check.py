"""What is asked of every random formula: compiled and evaluated results agree, and so do gradients and differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager

import numpy as np

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.arrays import to_array
from einsmith.driver.executable import Executable
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Graph
from tests.fuzz.generate import Case
from tests.fuzz.tolerance import errors

STEP = 1e-6  # of the central differences


class Unfit(Exception):
    """The case says nothing: numbers leave the range of their types, or a step lies where the difference is taken."""


@contextmanager
def threads(n: int):
    es.set_threads(n)
    try:
        yield
    finally:
        es.set_threads(None)


_LAST: list[tuple[tuple, tuple]] = []
"""The last key and result of `reference`."""


def reference(graph: Graph, inputs: Sequence[np.ndarray]) -> tuple:
    """Return what the evaluator and `errors` give; of the last graph and inputs, which several programs share, once."""
    key = (graph, *((a.dtype, a.shape, a.tobytes()) for a in map(np.asarray, inputs)))
    if not _LAST or _LAST[0][0] != key:
        _LAST[:] = [(key, (evaluate(graph, inputs), errors(graph, inputs)))]
    return _LAST[0][1]


def agree(
    got: Sequence[np.ndarray],
    graph: Graph,
    inputs: Sequence[np.ndarray],
    what: str,
    exact: bool = False,
    want: tuple[list[np.ndarray], list[np.ndarray]] | None = None,
    known: tuple | None = None,
) -> None:
    """Raises AssertionError unless `got` are the graph's outputs and updates for `inputs`, but for their roundings.
    `want`: what the evaluator gives, `known`: what `errors` says of it."""
    wanted = None if want and known else reference(graph, inputs)
    outputs, updates = want or wanted[0]
    bounds, greatest, whole = known or wanted[1]
    if greatest >= (2**24 if exact else 2**30):
        raise Unfit(f"values reach {greatest:.3g}")
    roots = [*graph.outputs, *(t for _, t in graph.updates)]
    infinite = not all(np.isfinite(a).all() for a in inputs)
    for n, (g, w, (v, error), t) in enumerate(zip(got, [*outputs, *updates], bounds, roots, strict=True)):
        name = f"{what}, result {n}"
        assert g.dtype == t.dtype.numpy and g.shape == t.shape, f"{name}: {g.dtype}{g.shape}, not {t.dtype}{t.shape}"
        np.testing.assert_array_equal(v, w, err_msg="the error analysis and the evaluator differ")
        if exact and whole:
            error = np.zeros(error.shape)
        with np.errstate(invalid="ignore"):
            far = np.abs(g.astype(float) - w) > error if t.dtype.kind != "b" else (g != w) & ~(error > 0)
            unlike = np.isnan(g.astype(float)) != np.isnan(w.astype(float))
            # what is infinite times what underflows may be anything
            far |= unlike & (error != np.inf) if infinite else unlike
        if far.any():
            at = tuple(map(int, np.unravel_index(np.argmax(far), far.shape)))
            raise AssertionError(
                f"{name}: {far.sum()} of {far.size} elements differ, first at {at}: got {g[at]!r}, want {w[at]!r}, "
                f"error at most {error[at]:.3g}"
            )


def _close(got: Sequence[np.ndarray], want: Sequence[np.ndarray], what: str) -> None:
    """Results of the evaluator, all in float64, that differ by its own roundings at most."""
    for g, w in zip(got, want, strict=True):
        scale = float(np.abs(np.where(np.isfinite(w), w, 0)).max(initial=1.0)) if w.dtype.kind == "f" else 0
        np.testing.assert_allclose(g, w, rtol=1e-7, atol=1e-9 * scale, err_msg=what)


def compile_and_compare(f: Callable, arrays: Sequence, kwargs: dict, what: str, exact: bool = False) -> None:
    """f traced once, compiled for 1 and 2 threads, and compared with the evaluator."""
    traced = trace_call(f, tuple(arrays), kwargs)
    given = [to_array(a) for a in arrays] + [np.asarray(v, np.float64) for v in kwargs.values()]
    inputs = [*given, *(traced.bind[x] for x in traced.graph.inputs[len(given) :])]
    for n in (1, 2):
        run = Executable(traced.graph, traced.bind, n)
        if n == 1:  # the graph after all passes: reads that are needed stay within their tensors, values stay
            _close(evaluate(run.graph, inputs)[0], evaluate(traced.graph, inputs)[0], f"{what}, after the passes")
        result, again = run(given)[1], run(given)[1]
        agree(result, traced.graph, inputs, f"{what}, {n} threads", exact)
        for a, b in zip(result, again, strict=True):
            assert a.tobytes() == b.tobytes(), f"{what}, {n} threads: two runs differ"


def check_values(case: Case) -> None:
    """The formula, called as a user calls it, agrees with the evaluator for 1 and 2 threads."""
    f = es.op(case.text, extents=case.extents)
    arrays = case.arrays()
    traced = trace_call(f, tuple(arrays), case.parameters)
    given = arrays + [np.asarray(v, np.float64) for v in case.parameters.values()]
    inputs = [*given, *(traced.bind[x] for x in traced.graph.inputs[len(given) :])]
    for n in (1, 2):
        with threads(n):
            got = f(*arrays, **case.parameters)
        got = got if isinstance(got, tuple) else (got,)
        agree(got, traced.graph, inputs, f"{n} threads", case.exact)


def check_gradients(case: Case) -> None:
    """Derived gradients agree with central differences of the evaluator, and compiled gradients with evaluated ones."""
    f = es.op(case.text, extents=case.extents)
    arrays = case.arrays()
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    rng = np.random.default_rng(case.seed + 1)

    def scalar(*xs):
        outs = f(*xs, **case.parameters)
        outs = outs if isinstance(outs, tuple) else (outs,)
        terms = [(o * w).sum() for o, w in zip(outs, weights, strict=True) if o.dtype.is_float]
        return sum(terms[1:], terms[0])

    evaluated = es.interpret(f)(*wide, **case.parameters)
    evaluated = evaluated if isinstance(evaluated, tuple) else (evaluated,)
    weights = [rng.standard_normal(o.shape) for o in evaluated]
    at = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
    if not at or not any(o.dtype.kind == "f" for o in evaluated):
        raise Unfit("no float input or no float output")
    gradient = es.grad(scalar, tuple(at))
    got = es.interpret(gradient)(*wide)
    value = es.interpret(scalar)
    directions = [rng.standard_normal(a.shape) if n in at else np.zeros(a.shape, a.dtype) for n, a in enumerate(arrays)]

    def along(h: float) -> float:
        return float(value(*(a + h * d if a.dtype.kind == "f" else a for a, d in zip(wide, directions, strict=True))))

    middle = along(0.0)
    differences = [(along(h) - along(-h)) / (2 * h) for h in (STEP, STEP / 3)]
    sides = [(along(STEP) - middle) / STEP, (middle - along(-STEP)) / STEP]
    derived = sum(float((g * directions[n]).sum()) for g, n in zip(got, at, strict=True))
    scale = 1 + abs(derived) + abs(differences[0])
    if abs(differences[0] - differences[1]) > 1e-5 * scale or abs(sides[0] - sides[1]) > 1e-2 * scale:
        raise Unfit("a kink within the step, or a difference that cancels")
    if abs(derived - differences[0]) > 1e-4 * scale + 1e-8 * abs(middle):
        raise AssertionError(f"derived gradient {derived!r}, central difference {differences[0]!r}")
    compile_and_compare(gradient.traced, arrays, {}, "gradient")
