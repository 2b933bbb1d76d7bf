"""Planted faults, one at a time, in functions that kernels are lowered to: a mask dropped, a bound or a stride off by
one, a race, a barrier left out. Each must be noticed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.codegen.ssa import Loop, Op, SSAValue, operations
from einsmith.gpu.tiles import ir
from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.tiles.lower import lower
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.ir.nodes import apply
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.schedule.kernel import Kernel
from tests.kernels import samples as s
from tests.kernels.cover import SAMPLES
from tests.tiles import running
from tests.tiles.running import SMALL, SPLIT, WATCHED, check, data


def _softmax() -> Kernel:
    return SAMPLES["softmax gradient"].make(m=19, n=9)


def _bits() -> Kernel:
    words = [s.read(0, s.Axis(0), s.Const(k, dt.i32), dtype=dt.i32) for k in range(4)]
    return s.plain((37,), [(dt.i32, (37, 4))], apply("random_bits", *words))


def _thirds() -> Kernel:
    x = s.read(0, s.Axis(0), dtype=dt.f64)
    return s.plain((9,), [(dt.f64, (9,))], apply("where", apply("lt", x, s.num(0.0, dt.f64)), s.num(1 / 3, dt.f64), x))


KERNELS: dict[str, tuple[Callable[[], Kernel], str | None, Tiling, dict[int, int]]] = {
    "pointwise": (lambda: s.bias_relu(7, 9), None, SMALL, {}),
    "transposed": (lambda: s.transpose(7, 5), None, SMALL, {}),
    "gathered": (lambda: s.gather(6, 7), None, SMALL, {1: 6}),
    "rows summed": (lambda: s.rows("sum", 19), None, replace(SMALL, m=4), {}),
    "columns, in parts": (lambda: s.columns("sum", 9, 53), None, SPLIT, {}),
    "window": (lambda: s.halo(7), "reduction", SMALL, {}),
    "stencil": (lambda: s.depthwise(1, 3, 7, 9, 3, 1), "stencil", SMALL, {}),
    "largest of a window": (lambda: s.pool("argmax", 7), "stencil", SMALL, {}),
    "product": (lambda: s.biased(s.product(9, 19, 37, "TN"), 1), "contraction", SMALL, {}),
    "product, in parts": (lambda: s.batched(2, 19, 17, 67), "contraction", SPLIT, {}),
    "convolution": (lambda: s.padded_conv(2, 3, 5, 7, 9, 3, 3, 1), "contraction", SMALL, {}),
    "its gradient": (lambda: s.conv_dx(2, 17, 3, 5, 3, 3, 3, 1), "contraction", SMALL, {}),
    "scatter": (lambda: s.embedding(5, 19, 7, "computed"), None, SMALL, {0: 5}),
    "rows": (_softmax, None, SMALL, {}),
}
WITH_INFINITY = {"its gradient": 1}
"""The operand of which an element is infinite, so that sums are made again."""
Plant = tuple[str, TileFunction, TileFunction]
"""What is wrong, in which function, and that as it becomes."""


def _without(body: Sequence[Op | Loop], of: Op, new: Op | None) -> list[Op | Loop]:
    """The body with another instruction in the place of one, or none."""
    out: list[Op | Loop] = []
    for x in body:
        if isinstance(x, Loop):
            out.append(replace(x, body=_without(x.body, of, new)))
        elif x is not of:
            out.append(x)
        elif new is not None:
            out.append(new)
    return out


def _replaced(f: TileFunction, of: Op, new: Op | None, literal: Op | None = None) -> TileFunction:
    return replace(f, constants=[*f.constants, *([literal] if literal else [])], body=_without(f.body, of, new))


def plants(f: TileFunction) -> Iterator[Plant]:
    numbers = {x.results[0]: x.attrs[0] for x in f.constants if x.results[0].elem in ir.INTEGERS}
    for x in operations(f.body):
        if x.name == "load" and x.args[1] is not None:
            yield "mask of a load", f, _replaced(f, x, replace(x, args=(x.args[0], None, None)))
        if x.name == "store" and x.args[2] is not None:
            yield "mask of a store", f, _replaced(f, x, replace(x, args=(*x.args[:2], None)))
        if x.name == "barrier":
            yield "barrier", f, _replaced(f, x, None)
        if x.name == "program" and f.programs > 1:
            literal = Op("const", (), (SSAValue(-1, x.results[0].type),), (0,))
            none = replace(x, name="add", args=(literal.results[0], literal.results[0]))
            yield "race", f, _replaced(f, x, none, literal)
        if x.name in ("lt", "mul") and x.args[1] in numbers:
            other = SSAValue(-1, x.args[1].type)  # type: ignore[union-attr]
            literal = Op("const", (), (other,), (numbers[x.args[1]] + 1,))
            kind = "bound" if x.name == "lt" else "stride"
            yield kind, f, _replaced(f, x, replace(x, args=(x.args[0], other)), literal)


def in_place_of(f: TileFunction, other: TileFunction, lowered: Lowered) -> Lowered:
    """The launches with one function changed. Those before it stay what they are: it is found by its name."""
    launches = [Launch(other, x.tasks) if x.function.name == f.name else x for x in lowered.launches]
    return Lowered(launches, lowered.workspace)


def noticed(name: str, f: TileFunction, other: TileFunction, ways: Sequence[str], rng: np.random.Generator) -> bool:
    make, pattern, tiling, limits = KERNELS[name]
    kernel = make()
    arrays = data(kernel, rng, limits)
    if name in WITH_INFINITY:
        arrays[WITH_INFINITY[name]].flat[2] = np.inf
    try:
        check(kernel, rng, tiling, pattern, ways, arrays=arrays, change=partial(in_place_of, f, other))
    except AssertionError:
        return True
    return False


HARMLESS = {"mask of a load"}
"""Where a lane that is no point reads an element that is there, nothing depends on the mask."""


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", KERNELS)
def test_planted_faults_are_noticed(name: str, rng: np.random.Generator) -> None:
    make, pattern, tiling, _ = KERNELS[name]
    found, missed = Counter[str](), Counter[str]()
    for launch in lower(make(), tiling, pattern).launches:
        for n, (kind, f, other) in enumerate(plants(launch.function)):
            (found if noticed(name, f, other, [WATCHED[n % 2]], rng) else missed)[kind] += 1
    assert {"race", "bound", "mask of a load", "mask of a store"} <= set(found)
    assert not set(missed) - HARMLESS


@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_raise_no_alarm(name: str, rng: np.random.Generator) -> None:
    make, pattern, tiling, _ = KERNELS[name]
    (first, *_) = lower(make(), tiling, pattern).launches
    assert not noticed(name, first.function, first.function, WATCHED, rng)


def test_a_missing_barrier_is_noticed_in_rows(rng: np.random.Generator) -> None:
    make, pattern, tiling, _ = KERNELS["rows"]
    found = [p for x in lower(make(), tiling, pattern).launches for p in plants(x.function) if p[0] == "barrier"]
    assert found and all(noticed("rows", f, other, WATCHED, rng) for _, f, other in found)


TEXTS = {
    "what masked lanes give": (lambda: s.product(9, 19, 5), r", other=v\d+", ""),
    "a maximum that drops NaN": (lambda: s.rows("max", 19), r", propagate_nan=tl.PropagateNan.ALL", ""),
    "shifts that copy the sign": (_bits, r"\.to\(tl\.uint32, bitcast=True\) >>", " >>"),
    "an approximate product": (lambda: s.product(9, 19, 40), '"ieee"', '"tf32"'),
    "a literal without a type": (_thirds, r"tl\.full\(\(\), (0\.33\d*), tl\.float64\)", r"\1"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_faults_of_the_text_are_noticed(name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy would do anyway and Triton does not: the stand-in is Triton's."""
    make, before, after = TEXTS[name]
    kernel = make()
    arrays = data(kernel, rng)
    if "NaN" in name:
        arrays[0][3, 4] = np.nan
    if "product" in name:
        arrays[0] += np.float32(1 / 3)
    check(kernel, rng, ways=["text"], arrays=arrays)
    monkeypatch.setattr(running, "triton_text", lambda f: re.sub(before, after, triton_text(f)))
    with pytest.raises(AssertionError):
        check(kernel, rng, ways=["text"], arrays=arrays)
