"""Checks of indices are dropped where earlier ones imply them, and raise as before."""

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Axis, Compute, Const, Graph, Read, Reduce, Tensor, apply, cast, leaf, template
from einsmith.ir.rebuild import guarded
from einsmith.passes.algebra.implied_checks import implied_checks
from einsmith.passes.algebra.simplify import simplify
from einsmith.passes.context import PassContext

E, P, N = 13, 7, 5
IDS, OTHER, X = leaf((E,), dt.i32), leaf((E,), dt.i32), leaf((E, P), dt.f32)
INPUTS = (IDS, OTHER, X)
PARAMS = [(x.dtype, x.shape) for x in INPUTS]


def _read(slot, *index):
    return Read(slot, tuple(index), PARAMS[slot][0])


def _wrong(index, extent=N):
    inside = apply("and", apply("le", Const(0, index.dtype), index), apply("lt", index, Const(extent, index.dtype)))
    return cast(apply("not", inside), dt.i32)


def _check(domain, guards, wrong) -> Tensor:
    return Compute(template((), PARAMS, Reduce("sum", domain, (guarded(guards, wrong),))), INPUTS)


def _dropped(*checks: Tensor) -> list[int]:
    """Return which of the checks a program does without."""
    graph = simplify(Graph(INPUTS, (), (), tuple((t, str(n)) for n, t in enumerate(checks))))
    left = {m for _, m in implied_checks(graph, PassContext()).checks}
    return [n for n in range(len(checks)) if str(n) not in left]


A, B = Axis(0), Axis(1)
FLOAT = apply("lt", _read(2, A, B), Const(0.5, dt.f32))
EARLY = apply("lt", A, Const(4, dt.i32))
NEXT = apply("add", A, Const(1, dt.i32))
WHOLE = _check((E,), [], _wrong(_read(0, A)))


@pytest.mark.parametrize(
    ("first", "second", "is_dropped"),
    [
        (WHOLE, _check((E, P), [FLOAT], _wrong(_read(0, A))), True),
        (WHOLE, _check((E - 4,), [], _wrong(_read(0, A), N + 1)), True),
        (WHOLE, _check((E - 1,), [], _wrong(_read(0, NEXT))), True),
        (WHOLE, _check((E,), [], _wrong(_read(0, A), N - 1)), False),
        (WHOLE, _check((E,), [], _wrong(_read(1, A))), False),
        (_check((E - 1,), [], _wrong(_read(0, A))), WHOLE, False),
        (_check((E - 1,), [], _wrong(_read(0, NEXT))), WHOLE, False),
        (_check((E, P), [FLOAT], _wrong(_read(0, A))), WHOLE, False),
        (_check((E,), [EARLY], _wrong(_read(0, A))), WHOLE, False),
        (_check((E,), [EARLY], _wrong(_read(0, A))), _check((E, P), [FLOAT, EARLY], _wrong(_read(0, A))), True),
        (_check((E,), [EARLY], _wrong(_read(0, A))), _check((E,), [apply("not", EARLY)], _wrong(_read(0, A))), False),
        (
            _check((E, P), [FLOAT], _wrong(_read(0, A))),
            _check((P, E), [apply("lt", _read(2, B, A), Const(0.5, dt.f32))], _wrong(_read(0, B))),
            True,
        ),
        (
            _check((E, E), [], _wrong(apply("add", _read(0, A), _read(1, B)))),
            _check((E, E), [], _wrong(apply("add", _read(1, A), _read(0, B)))),
            True,
        ),
        (
            _check((E, E), [], _wrong(apply("sub", _read(0, A), _read(1, B)))),
            _check((E, E), [], _wrong(apply("sub", _read(1, A), _read(0, B)))),
            False,
        ),
        (  # not (x < 0.5) says more of x than not (x < 0.25), not less
            _check((E, P), [apply("not", apply("lt", _read(2, A, B), Const(0.25, dt.f32)))], _wrong(_read(0, A))),
            _check((E, P), [apply("not", FLOAT)], _wrong(_read(0, A))),
            False,
        ),
        (
            _check((E, P), [apply("not", FLOAT)], _wrong(_read(0, A))),
            _check((E, P), [apply("not", apply("lt", _read(2, A, B), Const(0.25, dt.f32)))], _wrong(_read(0, A))),
            False,
        ),
        (  # a read at the same position twice
            _check((E,), [], _wrong(apply("add", _read(0, A), _read(1, A)))),
            _check((E, E), [], _wrong(apply("add", _read(0, A), _read(1, B)))),
            False,
        ),
        (
            _check((E, E), [], _wrong(apply("add", _read(0, A), _read(1, B)))),
            _check((E,), [], _wrong(apply("add", _read(0, A), _read(1, A)))),
            True,
        ),
    ],
)
def test_check_is_dropped_only_where_an_earlier_one_implies_it(first, second, is_dropped):
    assert _dropped(first, second) == ([1] if is_dropped else [])


def test_dropped_checks_are_implied_on_random_data():
    """What is dropped is never the only check that fails."""
    rng = np.random.default_rng(0)
    guards = [FLOAT, EARLY, apply("lt", _read(1, A), Const(2, dt.i32)), apply("le", _read(0, A), _read(1, A))]
    indices = [_read(0, A), _read(0, apply("floordiv", A, Const(2, dt.i32))), _read(1, A)]
    dropped = 0
    for _ in range(60):
        checks = []
        for _ in range(3):
            chosen = [guards[k] for k in rng.permutation(len(guards))[: rng.integers(3)]]
            checks.append(
                _check(
                    (E, P) if FLOAT in chosen else (E,),
                    chosen,
                    _wrong(indices[rng.integers(3)], int(rng.integers(3, 6))),
                )
            )
        checks = list(dict.fromkeys(checks))
        without = _dropped(*checks)
        dropped += len(without)
        for _ in range(20):
            data = [rng.integers(0, 6, E).astype(np.int32) for _ in range(2)]
            values, _ = evaluate(Graph(INPUTS, tuple(checks), (), ()), [*data, rng.random((E, P)).astype(np.float32)])
            failed = [bool(v) for v in values]
            first = failed.index(True) if any(failed) else None
            assert first not in without
    assert dropped > 10


GUARDED = es.op("y[e,p] = where(exp(a[e,p]) < 2.0, x[id[e],p], 0)", inputs="a, x, id")


def _gradients(op):
    return es.jit(lambda a, x, i: es.vjp(lambda a, x: op(a, x, i), a, x)[1](a))


@pytest.mark.parametrize("points", [1, 31, 67])
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("bad", [-1, 11])
def test_float_guard_decides_whether_a_wrong_index_raises(points, place, bad):
    rng = np.random.default_rng(1)
    a, x = np.ones((points, 40)), rng.standard_normal((11, 40))
    ids = rng.integers(0, 11, points)
    at = 0 if place == "first" else points - 1
    ids[at] = bad
    for f in (es.jit(GUARDED), _gradients(GUARDED)):
        a[:] = 0
        a[at] = 1  # exp(1) > 2: never read
        f(a, x, ids)
        for p in (0, 39):
            a[at, p] = 0
            with pytest.raises(IndexError, match=rf"element \[{at}\] of .* is {bad}"):
                f(a, x, ids)
            a[at, p] = 1


def test_index_is_counted_before_dear_guards():
    a, x, ids = np.zeros((2000, 300)), np.zeros((11, 300)), np.zeros(2000, np.int64)
    f = es.jit(GUARDED)
    f(a, x, ids)
    assert "sum[2000] -> scalar" in str(f.plan)
    f = _gradients(es.op("y[e,p] = min(x[id[e],p]*exp(a[e,p]), 0.9)", inputs="a, x, id"))
    f(a, x, ids)
    assert str(f.plan).count("-> scalar") == 1


@pytest.mark.parametrize("rows", [[0, 0, 4, 4, 9, 13], [0, 13, 13, 13, 13, 13], [2, 3, 3, 7, 8, 11]])
def test_wrong_index_raises_within_segments_alone(rows):
    op = es.op(
        "y[t,k] = sum[e](where(row[t] <= e and e < row[t+1], a[e]*c[id[e],k], 0))",
        inputs="a, c, id, row",
        extents={"t": "row.shape[0]-1"},
    )
    rng = np.random.default_rng(2)
    a, c, row = rng.standard_normal(13), rng.standard_normal((5, 3)), np.array(rows)
    value = es.jit(lambda a, c, ids: op(a, c, ids, row))
    gradients = es.jit(lambda a, c, ids, g: es.vjp(lambda a, c: op(a, c, ids, row), a, c)[1](g))
    for e in range(13):
        ids = rng.integers(0, 5, 13)
        ids[e] = 5
        for call in (lambda i=ids: value(a, c, i), lambda i=ids: gradients(a, c, i, np.ones((5, 3)))):
            if rows[0] <= e < rows[-1]:
                with pytest.raises(IndexError, match=rf"element \[{e}\]"):
                    call()
            else:
                call()
