"""Contractions in words of 16- and 8-bit points agree with the evaluator, in every configuration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Apply, Axis, Const, Expr, Read, apply, cast
from einsmith.ir.rebuild import map_bodies, rebuild
from einsmith.kernels.contraction.config import Tiled
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION, Configs
from einsmith.kernels.contraction.search import candidates
from einsmith.kernels.contraction.space import explain_illegal
from einsmith.kernels.contraction.words import dot_of, in_words, word_axes
from einsmith.schedule.contraction_problem import needs_exact_guards, problems
from einsmith.schedule.kernel import Kernel
from tests.kernels.cover import each_value
from tests.kernels.runner import check_exact, fresh, host, reference
from tests.kernels.samples import (
    batched,
    biased,
    capsule,
    conv,
    conv_dw,
    conv_dx,
    kernel_of,
    padded_conv,
    product,
    zero_unless,
)

WITH_DOTS = (("bf16", 2.0), ("u8i8", 2.0), ("i16", 2.0))


def machine(vector_bytes: int = 0) -> Target:
    """A machine that is said to have every dot product; the code generator computes those it has not by points."""
    target = replace(host(), dots=WITH_DOTS)
    return replace(target, vector_bytes=vector_bytes) if vector_bytes else target


def narrowed(kernel: Kernel, *types: DType, rounds: bool = False) -> Kernel:
    """The kernel with arguments of narrower types, which are converted; `rounds`: with the arguments rounded where they
    are read."""

    def rule(e: Expr):
        if not isinstance(e, Read) or e.slot >= len(types):
            return None
        to = types[e.slot]
        return cast(cast(e, to), e.dtype) if rounds else cast(Read(e.slot, e.index, to), e.dtype)

    t = kernel.root
    params = [(to, shape) for to, (_, shape) in zip(types, t.params, strict=False)] + list(t.params[len(types) :])
    return kernel_of(map_bodies(t, lambda b: rebuild([b], rule)[0], t.params if rounds else params))


BF16 = dt.bf16, dt.bf16


def configs_in_words(kernel: Kernel, target: Target) -> list[Tiled]:
    (p,) = problems(kernel.root) or ()
    return [c for c in candidates(kernel, [p], target) if isinstance(c, Tiled) and c.words is not None]


def check_words(kernel: Kernel, most: int = 4, target: Target | None = None) -> Counter:
    """Runs configurations that differ in the value of each field; returns how often each was in words."""
    target = target or machine()
    every = each_value(configs_in_words(kernel, target))[:most]
    assert every
    check_exact(kernel, [Configs((c,)) for c in every], target=target)
    return Counter(c.words for c in every)


SIZES = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("rounds", [False, True])
def test_products(kind, rounds):
    rng = np.random.default_rng(sum(map(ord, kind)))
    sizes = [(16, 32, 16), (1, 1, 7), (3, 70, 600), *rng.choice(SIZES, (1, 3))]
    for m, n, k in (map(int, x) for x in sizes):
        if k > 1:
            check_words(narrowed(product(m, n, k, kind), *BF16, rounds=rounds), 3)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
def test_widths_of_vectors(vector_bytes):
    for k in (24, 37):
        check_words(narrowed(product(21, 35, k, "NT"), *BF16), 2, machine(vector_bytes))


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "kernel",
    [
        conv(2, 6, 9, 9, 5, 3, 3, 1), conv(2, 5, 7, 9, 6, 3, 2, 0), conv(1, 8, 8, 8, 8, 3, 3, 1, 2),
        padded_conv(2, 6, 9, 9, 5, 3, 3, 1), conv_dw(2, 3, 9, 9, 4, 3, 3, 1), conv_dx(2, 4, 9, 9, 6, 3, 3, 1),
        batched(3, 9, 17, 10), capsule(2, 3, 5, 4, 1), capsule(1, 3, 7, 4, 2),
    ],
)  # fmt: skip
def test_convolutions_and_batches(kernel):
    check_words(narrowed(kernel, *BF16))


def test_words_that_lie_in_memory_are_read_as_they_are():
    kernel = narrowed(product(16, 32, 64, "NT"), *BF16)
    (p,) = problems(kernel.root) or ()
    q = in_words(kernel, p, 2, machine())
    assert q is not None and q.extents[2] == 32
    assert all(isinstance(o.expr, Read) for o in q.operands)
    odd = narrowed(product(16, 32, 63, "NT"), *BF16)
    (p,) = problems(odd.root) or ()
    q = in_words(odd, p, 2, machine())
    assert q is not None and q.extents[2] == 32
    assert all(isinstance(o.expr, Apply) and o.expr.fn == "pack" for o in q.operands)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("types", [(dt.u8, dt.i8), (dt.i8, dt.u8), (dt.u8, dt.u8), (dt.i8, dt.i8)])
@pytest.mark.parametrize("dots", [("u8i8", "i16"), ("i16",)])
def test_sums_of_integers(types, dots):
    rng, target = np.random.default_rng(len(dots)), replace(host(), dots=tuple((n, 2.0) for n in dots))
    for m, n, k in [(13, 17, 5), (16, 32, 16), (9, 40, 66), *rng.choice(SIZES, (1, 3)).tolist()]:
        if k > 1:
            kernel = narrowed(as_integers(product(m, n, k, "NT")), *types)
            (p,) = problems(kernel.root) or ()
            found = dot_of(p, target)
            assert found is not None and found[0].name == (dots[0] if {*types} == {dt.u8, dt.i8} else "i16")
            check_words(kernel, 2, target)
    check_words(narrowed(as_integers(conv(2, 6, 9, 9, 5, 3, 3, 1)), *types), 2, target)


def as_integers(kernel: Kernel) -> Kernel:
    """The kernel with int32 in the place of its floats."""

    def rule(e: Expr):
        if isinstance(e, Read):
            return Read(e.slot, e.index, dt.i32)
        if isinstance(e, Const) and e.dtype.is_float:
            return Const(int(e.value), dt.i32)
        return Apply(e.fn, e.args, e.args[-1].dtype) if isinstance(e, Apply) and e.dtype.is_float else None

    params = [(dt.i32, shape) for _, shape in kernel.root.params]
    return kernel_of(map_bodies(kernel.root, lambda b: rebuild([b], rule)[0], params))


def test_an_epilogue_follows_sums_of_words():
    check_words(biased(narrowed(product(17, 33, 12), *BF16), 1))


def test_axes_that_guards_mention_have_no_words():
    below = apply("le", Axis(2), Axis(0))
    t = narrowed(product(9, 9, 9), *BF16).root
    masked = kernel_of(map_bodies(t, lambda b: zero_unless(below, b)))
    (p,) = problems(masked.root) or ()
    assert not word_axes(masked, p, machine()) and in_words(masked, p, 2, machine()) is None
    config = replace(CONTRACTION.configs(masked, machine())[0].pieces[0], words=2)
    assert "cannot be taken in words" in CONTRACTION.legal(masked, Configs((config,)), machine())
    with pytest.raises(CompileError, match="cannot be taken in words"):
        CONTRACTION.lower(masked, Configs((config,)), machine())


TILES = (("bf16", 9.0), ("u8i8", 9.0))
IN_TILES = Tiled(mr=32, nv=2, a="buffer", words=2, tiles=True)


def tile_machine() -> Target:
    """A machine that is said to have tile registers; without them, functions stand for their instructions."""
    return replace(machine(64), vector_registers=32, tiles=TILES)


def check_tiles(kernel: Kernel, most: int = 2) -> None:
    target = tile_machine()
    configs = [c for c in configs_in_words(kernel, target) if c.tiles]
    assert configs
    check_exact(kernel, [Configs((c,)) for c in each_value(configs)[:most]], target=target)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("kind", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("types", [BF16, (dt.u8, dt.i8), (dt.i8, dt.u8)])
def test_products_in_tiles(kind, types):
    rng = np.random.default_rng(sum(map(ord, kind)))
    for m, n, k in [(16, 16, 32), (33, 15, 31), *rng.integers(16, 70, (1, 3)).tolist()]:
        kernel = product(m, n, k, kind)
        check_tiles(narrowed(kernel if types is BF16 else as_integers(kernel), *types), 2)


@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    "kernel",
    [
        conv(2, 6, 9, 9, 20, 3, 3, 1), conv(2, 5, 7, 9, 17, 3, 2, 0), padded_conv(2, 18, 9, 9, 5, 3, 3, 1),
        conv_dw(2, 3, 9, 9, 4, 3, 3, 1), conv_dx(2, 20, 9, 9, 6, 3, 3, 1), batched(3, 19, 17, 10),
        capsule(2, 3, 5, 4, 1), biased(product(20, 30, 40), 1),
    ],
)  # fmt: skip
def test_convolutions_and_batches_in_tiles(kernel):
    check_tiles(narrowed(kernel, *BF16))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("n", [1, 16, 48, 80, 100, 300])
@pytest.mark.parametrize("m, k", [(16, 64), (512, 4096)])
def test_proposed_tiles_are_legal(m, n, k):
    """A search by measurement begins with what is chosen."""
    target = tile_machine()
    for kind in ("NN", "NT", "TN"):
        kernel = narrowed(product(m, n, k, kind), *BF16)
        (p,) = problems(kernel.root) or ()
        found = [c for c in configs_in_words(kernel, target) if c.tiles]
        assert found or n < 16 > m
        assert not [reason for c in found if (reason := explain_illegal(kernel, p, c, target))]


def test_blocks_of_k_in_tiles():
    kernel, target = narrowed(product(40, 115, 2 * 70, "NN"), *BF16), tile_machine()
    for kc, nv, a, b in ((16, 2, "panel", "panel"), (48, 4, "buffer", "panel"), (32, 8, "panel", "buffer")):
        c = Tiled(mr=32, nv=nv, a=a, b=b, order="n", kc=kc, words=2, tiles=True)
        check_exact(kernel, [Configs((c,))], target=target)


@pytest.mark.parametrize(
    "change",
    [
        {"mr": 8}, {"nv": 3}, {"nv": 16}, {"a": "inline"}, {"b": "inline"}, {"split": 2}, {"kc": 24}, {"words": None},
        {"rows": True},
    ],
)  # fmt: skip
def test_what_tile_registers_cannot_do_is_refused(change):
    kernel, target = narrowed(product(40, 35, 140, "NN"), *BF16), tile_machine()
    c = replace(IN_TILES, **change)
    with pytest.raises(CompileError):
        CONTRACTION.lower(kernel, Configs((c,)), target)
    (p,) = problems(kernel.root) or ()
    assert explain_illegal(kernel, p, c, target)
    assert not explain_illegal(kernel, p, IN_TILES, target)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_tiles_make_sums_again_that_a_masked_infinity_spoils():
    kernel, target = narrowed(conv_dx(2, 20, 9, 9, 6, 3, 3, 1), *BF16), tile_machine()
    (p,) = problems(kernel.root) or ()
    configs = [Configs((c,)) for c in configs_in_words(kernel, target) if c.tiles][:1]
    assert configs and needs_exact_guards(p)
    rng, arrays = np.random.default_rng(0), fresh(kernel, 0)
    for i in range(2):
        values = dt.bf16.wide(arrays[i])
        values.reshape(-1)[rng.integers(values.size, size=3)] = np.inf, -np.inf, np.nan
        arrays[i] = dt.bf16.narrow(values)
    check_exact(kernel, configs, target=target, arrays=arrays)
    (out,) = reference(kernel, arrays).values()
    assert 0 < np.isnan(dt.bf16.wide(out) if out.dtype == dt.BFLOAT16 else out).sum() < out.size
