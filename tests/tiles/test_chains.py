"""Chains of reductions as sweeps: attention, kernel methods and their gradients agree with the evaluator, and nothing
of the size of a tile tensor lies in memory."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.base.environment import CHECK
from einsmith.codegen.ssa import Loop, operations
from einsmith.driver import compile, registry
from einsmith.gpu.tiles.chain_search import find_chain
from einsmith.gpu.tiles.chains import Chain, SweepPhase
from einsmith.gpu.tiles.ir import TileFunction, TileParameter
from einsmith.gpu.tiles.lower import lower, patterns
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.gpu.tiles.triton_text import signature, triton_text
from einsmith.kernels import autoconfig
from einsmith.schedule.kernel import Rows
from tests.fuzz.variants import streaming
from tests.schedule.test_reduction_chains import CHAINS, compile_with
from tests.schedule.test_row_nests import BATCHED, row_blocks_in
from tests.tiles import card, interp
from tests.tiles.backend import Machine, Tiles
from tests.tiles.memory import Memory
from tests.tiles.plans import Uncached, planned
from tests.tiles.running import SMALL, SPLIT, WATCHED, Held, backward, check, data, functions_of, in_double


def fused(f: Callable, *shapes: Sequence[int]) -> list[Rows]:
    """The fusions of rows that use up the large results of f."""
    return [k for k in planned(f, *shapes, fused=True) if isinstance(k, Rows) and k.reuses]


def chain_of(rows: Rows) -> Chain:
    found = find_chain(rows)
    assert found is not None
    return found


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def ahead(q, k, v):
    """Attention in which each query sees the next key, too: the last one of a block sees the first one of another."""
    return F.flex_attention(q[None], k[None], v[None], None, lambda b, h, i, j: j <= i + 1)[0]


def gradients_of(f: Callable) -> Callable:
    return es.grad(lambda *args: (f(*args) ** 2).sum(), (0, 1, 2))


def by_heads(heads: int, rows: int, columns: int, d: int, v: int) -> tuple[tuple[int, ...], ...]:
    return (heads, rows, d), (heads, columns, d), (heads, columns, v)


CASES = {
    **{
        f"{name}, in heads": (f, by_heads(3, 53, 59, 9, 10))
        for name, f in BATCHED.items()
        if "grouped" not in name and name != "nothing's gradients"  # its weights are 0, and its sums need no tiles
    },
    **{f"{name}, narrow": (f, ((37, 3), (43, 3), (43, 2))) for name, f in CHAINS.items()},
    "batch of heads": (causal, ((2, 3, 53, 9), (2, 3, 53, 9), (2, 3, 53, 10))),
    "gradients of a batch of heads": (gradients_of(causal), ((2, 3, 53, 9), (2, 3, 53, 9), (2, 3, 53, 10))),
    "grouped heads": (grouped, ((2, 6, 53, 9), (2, 2, 53, 9), (2, 2, 53, 10))),
    "gradients of grouped heads": (gradients_of(grouped), ((1, 6, 53, 9), (1, 2, 53, 9), (1, 2, 53, 10))),
    "wide values": (causal, by_heads(1, 191, 193, 8, 131)),
    "wide keys": (causal, by_heads(1, 331, 337, 131, 3)),
    "one key ahead": (ahead, by_heads(2, 53, 59, 9, 10)),
    "one column": (causal, by_heads(2, 61, 67, 2, 1)),
}
"""A function, and the shapes of its arguments."""


@cache
def rows_of(name: str) -> tuple[Rows, ...]:
    f, shapes = CASES[name]
    return tuple(fused(f, *shapes))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", CASES)
def test_chains_agree_with_the_evaluator(name: str, rng: np.random.Generator) -> None:
    """In turns in f32 and f64, by the interpreter and as text, programs in both orders."""
    turn = list(CASES).index(name)
    assert rows_of(name)
    for rows in rows_of(name):
        assert patterns(rows)[0] == "sweeps"
        made = in_double(rows) if turn % 2 else rows
        order = (range, backward)[turn // 2 % 2]
        check(made, rng, (SMALL, SPLIT)[turn // 3 % 2], ways=WATCHED[turn // 4 % 2 :][:1], order=order)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_way_agrees_with_the_evaluator(name: str, rng: np.random.Generator) -> None:
    for rows in rows_of(name):
        for made in (rows, in_double(rows)):
            check(made, rng, SMALL, ways=WATCHED)
            if "wide" not in name:
                check(made, rng, Tiling(16, 16, 16, precision="ieee"), "members", ways=WATCHED[:1])


@pytest.mark.parametrize("name", CASES)
def test_no_tile_is_stored(name: str) -> None:
    """No part of the workspace has as many elements, unless another member reads them in another way."""
    for rows in rows_of(name):
        chain = chain_of(rows)
        tile = chain.count([*chain.batch, *chain.sides[0], *chain.sides[1]])
        used = {p for f in functions_of(lower(rows, SMALL)) for p in f.parameters if p.buffer is None}
        local = {p for p in chain.stored if p >= len(rows.buffers)}
        assert sum(p.size >= tile for p in used) == len(local) and len(local) <= ("bias" in name)


def _dots(f: TileFunction) -> int:
    return sum(x.name == "dot" for x in operations(f.body))


def _loops(f: TileFunction) -> list[Loop]:
    return [x for x in f.body if isinstance(x, Loop)]


def test_attention_is_one_loop() -> None:
    """Scores, their maximum, sum and output are made in one pass over the keys, by two products; the maximum rescales
    the others."""
    (rows,) = fused(causal, *by_heads(3, 53, 59, 9, 10))
    (launch,) = lower(rows, SMALL).launches
    (loop,) = _loops(launch.function)
    assert _dots(launch.function) == 2 and launch.tasks == 3 * 4
    assert [v.shape for v in loop.carried] == [(16,), (16,), (16, 16)]


def test_gradients_of_attention_are_five_products_of_blocks() -> None:
    """The forward pass; then keys hold a block each, and queries do; both make the scores again."""
    (rows,) = fused(gradients_of(causal), *by_heads(3, 53, 59, 9, 10))
    functions = functions_of(lower(rows, SMALL))
    assert [_dots(f) for f in functions if f.name.startswith("sweep")] == [2, 4, 3]
    held = [(s.held, s.sweeps) for s in chain_of(rows).steps if isinstance(s, SweepPhase)]
    assert [h for h, _ in held] == [0, 1, 0] and all(len(sweeps) == 1 for _, sweeps in held)


def _loads(rows: Rows, buffer: int, rng: np.random.Generator) -> int:
    """Elements of a buffer that programs load."""
    lowered = lower(rows, SMALL)
    held = Held(rows.buffers, data(rows, rng), lowered.workspace)

    class Counted(Memory):
        count = 0

        def load(self, at: np.ndarray, program: int, epoch: int) -> np.ndarray:
            Counted.count += at.size
            return super().load(at, program, epoch)

    def find(p: TileParameter) -> Memory:
        found = held.find(p)
        if p.buffer == buffer:
            found.__class__ = Counted
        return found

    interp.run(functions_of(lowered), find)
    return Counted.count


def test_masks_bound_the_loops(rng: np.random.Generator) -> None:
    """Blocks of keys that no query of a block of queries may see are not read: of 7 x 7 blocks, 28 and 18."""
    loads = {}
    for name, f in {"all": F.scaled_dot_product_attention, "causal": causal, "window": BATCHED["window"]}.items():
        (rows,) = fused(f, *by_heads(1, 112, 112, 9, 10))
        assert rows.buffers[1].shape[-2:] == (112, 9)
        loads[name] = _loads(rows, 1, rng) // (16 * 9)
    assert loads == {"all": 49, "causal": 28, "window": 18}


def test_rows_that_see_nothing(rng: np.random.Generator) -> None:
    """A query whose keys are all masked has no maximum; its sums are none before and after blocks of such keys."""
    f = lambda q, k, v: F.flex_attention(q[None], k[None], v[None], None, lambda b, h, i, j: (j > 20) & (i > 3))[0]  # noqa: E731
    (rows,) = fused(f, *by_heads(2, 31, 59, 8, 8))
    check(rows, rng, SMALL, ways=WATCHED)


@pytest.mark.parametrize("mask", ["abs(i - j) <= 5", "j >= i + 9"])
def test_sums_of_rows_that_see_nothing(mask: str, rng: np.random.Generator) -> None:
    """Without a guard each of their terms, exp(-inf - -inf), is no number, though no loop need have a turn for them."""
    f = es.op(f"""s[h,i,j] = where({mask}, sum[d](q[h,i,d]*k[h,j,d]), -inf)
    m[h,i] = max[j](s[h,i,j])
    l[h,i] = sum[j](exp(s[h,i,j] - m[h,i]))
    o[h,i,d] = sum[j](exp(s[h,i,j] - m[h,i])*v[h,j,d])
    return m, l, o""")
    (rows,) = fused(f, *by_heads(2, 59, 31, 8, 8))
    check(rows, rng, SMALL, ways=WATCHED)


def test_infinite_scores(rng: np.random.Generator) -> None:
    """A maximum that is infinite makes its row NaN, as in the formula, and no other row."""
    (rows,) = fused(es.op(CHAIN_OF_SUMS), (37, 9), (43, 9), (43, 10))
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in rows.buffers]
    arrays[0][5, 2] = np.inf
    check(rows, rng, SMALL, ways=WATCHED, arrays=arrays)


def test_blocks_of_keys_without_any_score(rng: np.random.Generator) -> None:
    """What a maximum of nothing leaves of sums, which is no number, is left out when there is one."""
    masked = CHAIN_OF_SUMS.replace("sum[d](x[i,d]*y[j,d])", "where(b[j,0] > 0, sum[d](x[i,d]*y[j,d]), -inf)")
    (rows,) = fused(es.op(masked), (67, 10), (61, 9), (67, 9))
    arrays = [rng.standard_normal(b.shape).astype(np.float32) for b in rows.buffers]
    for a in arrays:
        if a.shape == (67, 10):
            a[:, 0] = np.where(np.arange(67) < 20, -1, 1)
    check(rows, rng, SMALL, ways=WATCHED, arrays=arrays)


CHAIN_OF_SUMS = """S[i,j] = sum[d](x[i,d]*y[j,d])
E[i,j] = exp(S[i,j] - max[k](S[i,k]))
o[i,v] = sum[j](E[i,j]*b[j,v])/sum[j](E[i,j])"""


def _is_dense(rows: Rows) -> bool:
    """Whether each member has buffers as they lie in memory, and not a part of those of a fusion around it."""
    every = [*rows.buffers, *rows.local]
    used = [(p, b) for m in rows.members for p, b in zip(m.places, m.kernel.buffers, strict=True)]
    return all(b.row_major and b.size == every[p].size for p, b in used)


@pytest.mark.parametrize("name", ["attention", pytest.param("attention's gradients", marks=pytest.mark.slow)])
def test_fusions_that_run_inside_of_others(name: str, rng: np.random.Generator) -> None:
    """The sweeps that a CPU runs in a block, whose sums follow running results, and of whose rows a mask leaves some
    out: evaluated as a whole they are plain fusions."""
    with streaming("3"):
        run = compile_with(CHAINS[name], [rng.standard_normal((37, 4), np.float32) for _ in range(3)], 1, 1)
        found = dict.fromkeys(k for call in run.plan.calls for k in row_blocks_in(call.kernel, run.target))
    inside = [k for k in found if (k.is_online or k.active is not None) and _is_dense(k)]
    assert any(k.is_online for k in inside) and any(k.active is not None for k in inside)
    for rows in inside[:4]:
        numbers = {n: 1 for n, b in enumerate(rows.buffers) if not b.dtype.is_float}  # of the block: the first one
        for pattern in patterns(rows):
            check(rows, rng, SMALL, pattern, ways=WATCHED[:1], limits=numbers)


# ----------------------------------------------------------------------------------------------------- whole programs


class Chained(Tiles):
    """The back end of a machine on which nothing that is used up fits a cache."""

    def target(self, threads: int) -> Machine:
        return Uncached(cores=threads)


@pytest.fixture
def chained(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Chained]:
    """Makes such a back end that of every program, in which fusions cost nothing."""

    def seat(**options: Any) -> Chained:
        made = Chained(**options)
        monkeypatch.setenv(CHECK.name, "0")
        monkeypatch.setattr(registry, "BACKENDS", {**registry.BACKENDS, made.name: made})
        monkeypatch.setattr(autoconfig, "OTHERS", {made.name: made.patterns})
        monkeypatch.setattr(registry, "DEFAULT", made)
        monkeypatch.setattr(compile, "predicted", lambda kernel, target: float(not isinstance(kernel, Rows)))
        return made

    return seat


PROGRAMS = ("batch of heads", "gradients of a batch of heads", "wide values")


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, chained: Callable[..., Chained], rng: np.random.Generator) -> None:
    f, shapes = CASES[name]
    x = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    made = chained(way=WATCHED[PROGRAMS.index(name) % 2])
    got, want = (r if isinstance(r, tuple) else (r,) for r in (es.jit(f, max_stored=0)(*x), es.interpret(f)(*x)))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())
    assert made.used["sweeps"]


def _language() -> tuple[es.nn.Module, np.ndarray, np.ndarray]:
    ids = np.random.default_rng(7).integers(0, 23, (1, 30))
    return es.models.GPT(vocabulary=23, width=8, layers=1, heads=2, positions=64), ids[:, :-1], ids[:, 1:]


def _images() -> tuple[es.nn.Module, np.ndarray, np.ndarray]:
    x = np.random.default_rng(7).standard_normal((2, 3, 28, 28)).astype(np.float32)
    return es.models.ViT(size=28, patch=4, width=8, layers=1, heads=2, inner=8, classes=5), x, np.array([1, 3])


def _by_class(x, y):
    return F.cross_entropy(x.reshape((-1, x.shape[-1])), y.reshape((-1,)))


@pytest.mark.parametrize("make", [_language, pytest.param(_images, marks=pytest.mark.slow)])
def test_networks_with_attention_train_alike(make: Callable, chained: Callable[..., Chained]) -> None:
    """With dropout of the weights, residuals and norms: losses and parameters after a step."""

    def train() -> tuple[list[float], dict[str, np.ndarray]]:
        es.manual_seed(3)
        model, x, y = make()
        step = es.TrainStep(model, _by_class, es.optim.SGD(lr=0.5), threads=1, max_stored=0)
        return [step(x, y)], step.model.state_dict()

    losses, weights = train()
    made = chained(tiling=Tiling(64, 32, 32, precision="ieee"))
    got, state = train()
    np.testing.assert_allclose(got, losses, rtol=2e-5)
    for key, value in state.items():
        np.testing.assert_allclose(value, weights[key], rtol=1e-3, atol=1e-4, err_msg=key)
    assert made.used["sweeps"] >= 2


# ------------------------------------------------------------------------------------------------------- machine code


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
def test_heads_of_64_compile_without_spills(gradients: bool) -> None:
    """For Hopper: sums and tiles lie in registers, and what is loaded ahead in the shared memory of a block."""
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    (rows,) = fused(gradients_of(causal) if gradients else causal, *by_heads(8, 1024, 1024, 64, 64))
    functions = [f for f in functions_of(lower(rows, Tiling())) if f.name.startswith("sweep")]
    text = triton_text(functions)
    for f in functions[-2:]:
        types = tuple(signature(f, [tuple(range(0, 64 * 64, 64))]))
        made = card.compiled(text, f.name, types, card.Shape())
        assert made.metadata.shared <= 227 << 10
        assert stack_of(made.asm["cubin"]) == 0


def stack_of(cubin: bytes) -> int:
    """Bytes of a thread's stack, where ptxas keeps what finds no register."""
    tools = Path(importlib.util.find_spec("triton").origin).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tools / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    found = re.search(r"STACK:(\d+)", said.stdout)
    assert found is not None
    return int(found.group(1))
