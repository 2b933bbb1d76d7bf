"""Terms that a guard makes zero are zero beside infinities and NaN, in every form; zeros of one factor are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.ir.nodes import Apply, Axis, Const, Reduce, apply
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction.config import Direct, Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.k_bounds import k_bounds, k_fractions
from einsmith.kernels.contraction.search import candidates
from einsmith.schedule.contraction_problem import needs_exact_guards, problems
from einsmith.schedule.kernel import Kernel
from tests.kernels.cover import each_value
from tests.kernels.runner import check_exact as check
from tests.kernels.runner import fresh, host, poisoned, random_array, reference, run_native, sampled
from tests.kernels.samples import (
    conv,
    conv_dw,
    conv_dx,
    depthwise,
    depthwise_dw,
    inside,
    involution_dx,
    lin,
    load,
    product,
    strided_dx,
    sum_of,
    times,
    zero_unless,
)  # fmt: skip

F = dt.f32


def guarded(kernel: Kernel, guard) -> Kernel:
    """The kernel, its terms zero where the guard fails."""
    body = kernel.root.parts[0].body
    assert isinstance(body, Reduce)
    return sum_of(kernel.shape, kernel.root.params, body.extents, zero_unless(guard, body.bodies[0]))


def moved_out(kernel: Kernel) -> Kernel:
    """The guard of a factor as a guard of the terms."""
    body = kernel.root.parts[0].body
    assert isinstance(body, Reduce)
    e = body.bodies[0]
    assert isinstance(e, Apply)
    ((at, w),) = [(i, a) for i, a in enumerate(e.args) if isinstance(a, Apply) and a.fn == "where"]
    bare = apply("mul", *(w.args[1] if i == at else a for i, a in enumerate(e.args)))
    return sum_of(kernel.shape, kernel.root.params, body.extents, zero_unless(w.args[0], bare))


def attention() -> Kernel:
    """out[h, i, d] = sum of P[h, i, k] * V[h, k, d] over k <= i"""
    params = ((F, (2, 21, 21)), (F, (2, 21, 17)))
    body = times(load(0, 0, 1, 3), load(1, 0, 3, 2))
    return sum_of((2, 21, 17), params, (21,), zero_unless(apply("le", Axis(3), Axis(1)), body))


def strided_rows() -> Kernel:
    """A guard of two axes of K and a batch axis, which both operands have."""
    params = ((F, (3, 9, 5, 6)), (F, (3, 5, 6, 18)))
    guard = apply("lt", lin((1, 0), (1, 3), (-1, 4)), Const(3, dt.i32))
    return sum_of((3, 9, 18), params, (5, 6), zero_unless(guard, times(load(0, 0, 1, 3, 4), load(1, 0, 3, 4, 2))))


def le(a: int, b: int) -> Apply:
    return apply("le", Axis(a), Axis(b))


CASES = {
    "causal": attention(),
    "lower": guarded(product(21, 37, 19), le(2, 0)),
    "upper": guarded(product(21, 37, 19, "NT"), le(0, 2)),
    "of columns": guarded(product(14, 35, 23, "TN"), le(2, 1)),
    "band": guarded(product(19, 22, 20), apply("and", le(0, 2), le(2, 1))),
    "of k": guarded(product(13, 18, 20), apply("lt", Axis(2), Const(17, dt.i32))),
    "of results": guarded(product(13, 18, 20), apply("lt", Axis(0), Axis(1))),
    "one row": guarded(product(1, 35, 40), apply("lt", Axis(1), Axis(2))),
    "one column": guarded(product(35, 1, 40, "TN"), apply("lt", Axis(0), Axis(2))),
    "data": guarded(product(13, 18, 20), apply("lt", Const(0.0, F), load(0, 0, 2))),
    "batch": strided_rows(),
    "split": guarded(product(6, 20, 3001, "TN"), le(0, 2)),
    "dx": conv_dx(2, 3, 9, 11, 4, 3, 3, 1),
    "dx without padding": conv_dx(2, 3, 14, 14, 4, 5, 5, 0),
    "dx by phases": strided_dx(3, 21, 5, 4),
    "dw": conv_dw(3, 2, 8, 7, 4, 3, 3, 1),
    "dw of one channel": conv_dw(5, 1, 17, 16, 6, 5, 5, 2),
    "forward": conv(2, 3, 9, 9, 5, 3, 3, 1),
    "forward strided": conv(2, 3, 9, 9, 5, 3, 3, 1, 2),
    "depthwise": moved_out(depthwise(3, 2, 13, 17, 3, 1)),
    "depthwise weights": moved_out(depthwise_dw(4, 2, 16, 19, 3, 1)),
    "involution inputs": involution_dx(2, 5, 13, 17, 3, 1),
    "padded factor": depthwise(3, 2, 13, 17, 3, 1),
    "padded factor of weights": depthwise_dw(4, 2, 16, 19, 3, 1),
}


def sprinkled(kernel: Kernel, seed: int) -> list[list[np.ndarray]]:
    """Inputs with some elements of the first, the second, and both operands infinite or NaN."""
    out = []
    for which in ((0,), (1,), (0, 1)):
        arrays = fresh(kernel, seed)
        rng = np.random.default_rng(seed + len(out))
        for i in which:
            odd = rng.random(arrays[i].shape) < min(0.1, 4 / arrays[i].size)
            odd.reshape(-1)[rng.integers(arrays[i].size)] = True
            arrays[i][odd] = rng.choice([np.inf, -np.inf, np.nan], arrays[i].shape)[odd].astype(np.float32)
        out.append(arrays)
    return out


@pytest.mark.thinned(6)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", CASES)
def test_masked_terms_with_infinities(name):
    kernel, target = CASES[name], host()
    configs = CONTRACTION.configs(kernel, target)
    different = {(c.windows, type(c), isinstance(c, Tiled) and c.rows): x for x in configs for c in x.pieces}
    for n, arrays in enumerate(sprinkled(kernel, len(name))):
        picked = list(dict.fromkeys([configs[-1], *different.values()])) if n == 2 else configs[:1]
        check(kernel, picked, target=target, arrays=arrays)


@sampled(2)
@pytest.mark.thinned(2)
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", ["dx without padding", "dw of one channel", "depthwise", "depthwise weights"])
def test_every_form_makes_sums_again(name):
    kernel, target = CASES[name], host()
    (p,) = problems(kernel.root)
    found = {}
    for c in candidates(kernel, (p,), target):
        key = (type(c), c.windows, (c.vector, bool(c.k_outer)) if isinstance(c, Direct) else c.split > 1,
               isinstance(c, Tiled) and c.rows)  # fmt: skip
        found.setdefault(key, c)
    if name == "dx without padding":
        blocked = Tiled(mr=4, nv=2, kc=30)
        found |= {"blocked": blocked, "split": replace(blocked, split=2), "both": replace(blocked, kc=16, split=3)}
    if name == "dw of one channel":
        found["dot"] = Direct(6, 1, ((0, 3), (2, 3)), (), (), (4,), split=3)
    check(kernel, [Configs((c,)) for c in found.values()], target=target, arrays=sprinkled(kernel, 1)[2])


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name", ["lower", "dx", "padded factor", "batch"])
def test_every_pattern(name):
    kernel, target = CASES[name], host()
    arrays = sprinkled(kernel, 7)[2]
    want = reference(kernel, arrays)
    assert np.isnan(want[2]).any()
    taken = [p for p in autoconfig.PATTERNS if p.match(kernel)]
    assert {"contraction", "reduction"} <= {p.name for p in taken}
    for pattern in taken:
        for config in pattern.configs(kernel, target)[:1]:
            got = [a.copy() for a in arrays]
            run_native(pattern.lower(kernel, config, target), got, target)
            np.testing.assert_array_equal(got[2], want[2], err_msg=pattern.name)


def test_guards_of_terms_and_of_factors():
    """A padded factor is zero, and its term zero times the other; a guard around the product skips the term."""
    inner, outer = CASES["padded factor"], CASES["depthwise"]
    (p,), (q,) = problems(inner.root), problems(outer.root)
    assert p.operands[0].guards and not p.exact and not needs_exact_guards(p) and not k_bounds(p, 0)
    assert q.operands[0].guards == q.exact and needs_exact_guards(q) and k_bounds(q, 0)
    (p,) = problems(CASES["of results"].root)
    assert not needs_exact_guards(p)
    y = lin((1, 0), (1, 2), const=-1)
    body = times(zero_unless(inside(y, 9), load(0, y)), zero_unless(apply("lt", Axis(2), Axis(1)), load(1, 2, 1)))
    (p,) = problems(sum_of((9, 20), ((F, (9,)), (F, (3, 20))), (3,), body).root)
    assert [len(o.guards) for o in p.operands] == [2, 1] and not needs_exact_guards(p)


@sampled(4)
def test_vectors_within_a_row_of_which_an_operand_reads_one_place():
    """`out[a,b] = sum[i,j](where(a == b, w[i]*x[i,3*a+j], 0))`: along b, all lanes read one element of x."""
    body = zero_unless(apply("eq", Axis(0), Axis(1)), times(load(0, 2), load(1, 2, lin((3, 0), (1, 3)))))
    kernel, target = sum_of((15, 15), ((F, (5,)), (F, (5, 47))), (5, 5), body), host()
    (p,) = problems(kernel.root)
    found = dict.fromkeys([*CONTRACTION.configs(kernel, target), *candidates(kernel, (p,), target)])
    check(kernel, list(found)[:12], target=target)


def test_trimmed_loops_of_operands_with_one_point():
    """The guard's axes have one point: the loops over K are trimmed the same in every tile."""
    body = zero_unless(apply("lt", Axis(2), Const(3, dt.i32)), times(load(0, 0, 2), load(1, 2, 1)))
    kernel = sum_of((1, 1), ((F, (1, 7)), (F, (7, 1))), (7,), body)
    (p,) = problems(kernel.root)
    for which in (0, 1):
        assert k_fractions(p, tuple(k_bounds(p, which)), p.left + p.right, (8,))[0] in (1.0, 3 / 7)
    check(kernel, CONTRACTION.configs(kernel, host()), target=host())


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_unstored_lanes_change_no_others(rng, every):
    """Where they are NaN by chance, and where they are not: the same bits."""
    x = times(load(0, 4, 1, 5, 6), load(1, 0, 4, lin((1, 2), (-1, 5), const=1), lin((1, 3), (-1, 6))))
    guard = apply("and", inside(lin((1, 2), (-1, 5), const=1), 5), inside(lin((1, 3), (-1, 6)), 6))
    kernel = sum_of((1, 2, 6, 10), ((F, (2, 2, 4, 5)), (F, (1, 2, 5, 6))), (2, 4, 5), zero_unless(guard, x))
    base = [random_array(rng, b) for b in kernel.buffers]
    seen = 0
    pieces = [x for x in candidates(kernel, problems(kernel.root) or (), host()) if x.windows]
    for piece in pieces if every else each_value(pieces):
        lowered, found = CONTRACTION.lower(kernel, Configs((piece,)), host()), []
        if not any(x.function.scratch_bytes for x in lowered.launches):
            continue
        for fill in (255, 43):
            arrays = poisoned(kernel, base, reference(kernel, base) if not seen else {2: base[2]})
            run_native(lowered, arrays, host(), fill=fill)
            found.append(arrays)
        for a, b in zip(*found, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(piece))
        seen += 1
    assert seen
