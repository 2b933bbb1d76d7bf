"""Caches have bounds, evict what was used least recently, and stay sound in threads and after a fork."""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import os
import pkgutil
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base import caches
from einsmith.base.caches import Bound, Cache, Once
from einsmith.ir.nodes import Node
from tests.caches import forget

ROOT = Path(es.__file__).parent

# Module-level containers that may grow beside caches, and with what.
GROWING = {
    "einsmith.ir.interned._TABLE": "nodes, which are held weakly",
    "einsmith.api.jit._JITTED": "functions, which are held weakly",
    "einsmith.api.transforms._PULLBACKS": "functions, which are held weakly",
    "einsmith.api.transforms._JVPS": "functions, which are held weakly",
    "einsmith.base.locks._free_in_child": "locks, which are held weakly",
    "einsmith.base.locks._inside": "threads that hold a lock",
    "einsmith.runtime.buffers._blocks": "memory of results, of which MAX_KEPT_BYTES are kept",
    "einsmith.base.files._mine": "files that are being written",
    "einsmith.base.folders._held": "lock files that are open",
    "einsmith.codegen.cache.objects._written": "folders of the cache",
    "einsmith.tuning.kernels.database._unusable": "reading and writing",
    "einsmith.codegen.cache.native._loaded": "machine code, which is held weakly",
    "einsmith.codegen.llvm.jit._loaded": "machine code that a program or a cache holds, or that is released",
    "einsmith.codegen.llvm.jit._released": "machine code that is unloaded when some is loaded",
    "einsmith.frontends.torch_operator._DEFINITIONS": "operators, which PyTorch keeps as long as the process",
    "einsmith.frontends.torch_compile.result_pool._free": "memory of results, of which KEPT bytes are kept",
}

# Attributes that may grow, and with what.
GROWING_INSIDE = {
    "Cache._entries": "what the bound allows",
    "Bound._caches": "caches, which are held weakly",
    "Jitted._ready": "programs in its cache",
    "Jitted._quick": "the same",
    "Jitted._depends": "the same",
    "Sizes.seen": "the last 16 sizes",
    "TrainStep._parts": "programs, which are held weakly",
}

CONTAINERS = (MutableMapping, MutableSequence, MutableSet, deque, weakref.WeakSet)


@pytest.fixture
def bound() -> Iterator[Callable[..., Bound]]:
    known = len(caches.BOUNDS)
    yield lambda entries, nbytes=None: Bound("test", entries, nbytes)
    del caches.BOUNDS[known:]


def test_the_least_recently_used_entry_is_evicted(bound) -> None:
    c: Cache[str, int] = Cache(bound(3))
    for n, key in enumerate("abc"):
        c.put(key, n + 1)
    assert c.get("a") == 1 and c.find("b") is not None
    c.put("d", 4)
    assert set(c) == {"a", "b", "d"} and c.get("c") is None and "c" not in c
    c.put("a", 5)
    assert c.items() == [("b", 2), ("d", 4), ("a", 5)] and len(c) == 3


def test_bytes_are_bounded_and_one_that_is_larger_stays_alone(bound) -> None:
    c: Cache[int, bytes] = Cache(bound(100, 100), len)
    for n in range(20):
        c.put(n, bytes(30))
        assert c.nbytes == 30 * len(c) <= 100
    c.put(20, bytes(1000))
    assert list(c) == [20] and c.bound.held() == (1, 1000)
    c.put(20, bytes(10))
    assert c.bound.held() == (1, 10)
    c.clear()
    assert c.bound.held() == (0, 0)


def test_an_entry_loses_its_value_when_it_is_evicted(bound) -> None:
    told: list[Cache] = []
    c: Cache[int, str] = Cache(bound(2), evicted=told.append)
    first = c.put(0, "zero")
    c.put(1, "one")
    assert not told and first.value == "zero"
    c.put(2, "two")
    assert told == [c] and first.value is None and set(c) == {1, 2}


def test_a_value_that_is_replaced_is_gone(bound) -> None:
    c: Cache[int, str] = Cache(bound(3), len)
    first = c.put(0, "zero")
    c.put(0, "none")
    assert first.value is None and c.get(0) == "none" and c.bound.held() == (1, 4)


def test_the_first_of_equal_values_stays(bound) -> None:
    c: Cache[int, list] = Cache(bound(3))
    first: list = []
    assert c.setdefault(1, first) is first and c.setdefault(1, []) is first
    assert c.setdefault(2, []) is not first and c.bound.held() == (2, 0)


def test_caches_that_share_a_bound_evict_each_other_and_a_dead_one_frees_its_part(bound, new_objects) -> None:
    shared = bound(4)
    a: Cache[int, int] = Cache(shared)
    b: Cache[int, int] = Cache(shared)
    for n in range(2):
        a.put(n, n + 1)
        b.put(n, n + 1)
    assert a.get(0) and a.get(1)
    b.put(2, 3)
    assert (len(a), len(b)) == (2, 2) and 0 not in b
    del a
    gc.collect()
    assert shared.held() == (2, 0)
    b.put(3, 4), b.put(4, 5)
    assert len(b) == 4


def test_many_threads_keep_within_the_bound_and_get_right_values(bound) -> None:
    c: Cache[int, list[int]] = Cache(bound(16, 16 * 8), lambda value: 8)
    wrong: list[object] = []

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(0, 64, 3000).tolist()
        for n in numbers:
            found = c.get(n)
            if found is None:
                c.put(n, [n])
            elif found != [n]:
                wrong.append((n, found))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(c) <= 16 and c.nbytes == 8 * len(c)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_cache_is_free_in_a_child_that_is_forked_while_another_thread_is_in_it(bound) -> None:
    c: Cache[int, int] = Cache(bound(8))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with c.bound.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    pid = os.fork()
    if pid == 0:
        c.put(1, 1)
        os._exit(0 if c.get(1) == 1 else 1)
    done.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


# ------------------------------------------------------------------------------------------------------- the inventory


def modules() -> list[ModuleType]:
    """Every module of the package that can be imported here."""
    found = []
    for info in pkgutil.walk_packages(es.__path__, "einsmith.", onerror=lambda name: None):
        try:
            found.append(importlib.import_module(info.name))
        except ImportError:  # of a library that need not be there
            optional = (
                "einsmith.frontends.",
                "einsmith.bench.in_torch",
                "einsmith.bench.torch_steps",
                "einsmith.gpu.cuda.nccl",
            )
            if not info.name.startswith(optional):
                raise
    return found


def unbounded_memos(where: list[ModuleType]) -> list[str]:
    """Memoized functions of arguments without a bound, in modules and in their classes."""
    spaces: list[tuple[str, dict[str, Any]]] = []
    for m in where:
        spaces.append((m.__name__, vars(m)))
        spaces += [(f"{m.__name__}.{k}", vars(v)) for k, v in vars(m).items()
                   if inspect.isclass(v) and v.__module__ == m.__name__]  # fmt: skip
    return sorted({
        f"{name}.{k}"
        for name, space in spaces for k, v in space.items()
        if isinstance(v, functools._lru_cache_wrapper) and v.cache_parameters()["maxsize"] is None
        and inspect.signature(v.__wrapped__).parameters
    })  # fmt: skip


def containers(where: list[ModuleType]) -> dict[str, Any]:
    """Module-level containers that are not caches with a bound, by name."""
    return {
        f"{m.__name__}.{k}": v
        for m in where for k, v in vars(m).items()
        if not k.startswith("__") and isinstance(v, CONTAINERS)
    }  # fmt: skip


class Owned(NamedTuple):
    """A container that is an attribute of one of the package's objects, which it keeps alive."""

    owner: Any
    name: str
    size: int


def owned() -> list[Owned]:
    """The containers of all objects that live. Nodes have none that change."""
    objects = [
        x for x in gc.get_objects()
        if str(type(x).__module__).startswith("einsmith.") and not isinstance(x, Node) and hasattr(x, "__dict__")
    ]  # fmt: skip
    return [Owned(x, k, len(v)) for x in objects for k, v in vars(x).items() if isinstance(v, CONTAINERS)]


def grown(before: list[Owned]) -> set[str]:
    """Class and attribute of those that are larger now."""
    return {f"{type(x.owner).__name__}.{x.name}" for x in before if len(vars(x.owner).get(x.name, ())) > x.size}


def user() -> Callable[[range], None]:
    """What uses everything that is compiled by shape, for given numbers of rows."""
    rng = np.random.default_rng(0)
    product, shifted = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])"), es.op("y[i] = x[i] + x[k]")
    loss = es.value_and_grad(lambda a, b: es.tanh(product(a, b)).sum(), 1)
    compiled = es.jit(lambda a: a * 2)
    step = es.TrainStep(nn.Linear(3, 2), es.functional.cross_entropy, es.optim.SGD(lr=1e-3))

    def use(sizes: range) -> None:
        for n in sizes:
            a, b = rng.standard_normal((n, 3)), rng.standard_normal((3, 5))
            product(a, b), loss(a, b), es.functional.relu(a), compiled(a), shifted(a[:, 0], k=n - 1)
            es.op(f"y[i] = A[i,0] + {n}.0")(a)
            x, t = a.astype(np.float32), rng.integers(0, 2, n)
            step(x, t), step.evaluate([(x, t)])

    return use


def test_every_memoized_function_has_a_bound() -> None:
    assert unbounded_memos(modules()) == []


def user_of_torch() -> Callable[[range], None]:
    """What uses operators and functions of PyTorch that are compiled by shape, and what is said by line."""
    import torch

    from einsmith.frontends.torch import operator
    from einsmith.frontends.torch_compile.options import Options

    product = operator(es.op("C[i,j] = sum[k](A[i,k] * B[k,j])"))
    compiled = torch.compile(lambda x: (x * 2).sin(), backend="einsmith", dynamic=False)

    def use(sizes: range) -> None:
        for n in sizes:
            x = torch.rand(n, 3)
            product(x, torch.rand(3, 4)), compiled(x)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                Options().say("an operator", "no formula is there", f"line {n}")

    return use


def test_nothing_but_caches_grows_with_shapes_and_lines(every_object) -> None:
    where = modules()
    users = [user(), *([user_of_torch()] if find_spec("torch") else [])]
    for use in users:
        use(range(2, 4))
    before, inside = {name: len(v) for name, v in containers(where).items()}, owned()
    for use in users:
        use(range(4, 6))
    more = sorted(name for name, v in containers(where).items() if len(v) > before[name] and name not in GROWING)
    more += sorted(grown(inside) - {*GROWING_INSIDE})
    assert not more, f"these grow without a bound: {more}"


def test_warnings_repeat_beyond_a_bound(bound) -> None:
    once = Once("what a test says", 8)
    assert [once(n) for n in (1, 2, 1, 2, 3)] == [True, True, False, False, True]
    assert all(once(n) for n in range(10, 100)) and caches.BOUNDS[-1].held()[0] <= 8
    assert once(1) and not once(99)
    forget("what a test says")
    assert once(99)


def test_one_of_several_threads_says_it(bound) -> None:
    once, count = Once("what threads say"), 200
    barrier = threading.Barrier(4)
    said: list[int] = []

    def work() -> None:
        barrier.wait(60)
        said.extend(n for n in range(count) if once(n))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(said) == list(range(count))


def test_every_bound_is_a_number_and_holds() -> None:
    modules()
    names = [b.name for b in caches.BOUNDS]
    assert len(names) == len(set(names)) >= 5
    for b in caches.BOUNDS:
        entries, nbytes = b.held()
        assert 0 < b.entries < 1 << 16 and entries <= b.entries and nbytes <= (b.nbytes or 0)


def test_the_inventory_sees_what_has_no_bound() -> None:
    """The rules themselves are tested: a planted memo and a planted dictionary are found."""
    planted = ModuleType("planted")

    memo = functools.cache(lambda self, n: n)
    Owner = type("Owner", (), {"memo": memo, "__module__": "planted"})
    planted.memo, planted.fine = functools.cache(lambda n: n), functools.lru_cache(3)(lambda n: n)  # type: ignore[attr-defined]
    planted.once, planted.Owner, planted.kept = functools.cache(lambda: 1), Owner, {}  # type: ignore[attr-defined]
    planted.seen = weakref.WeakSet()  # type: ignore[attr-defined]
    assert unbounded_memos([planted]) == ["planted.Owner.memo", "planted.memo"]
    assert sorted(containers([planted])) == ["planted.kept", "planted.seen"]
    owner = type("Planted", (), {"__module__": "einsmith.planted"})()
    owner.kept = {}  # type: ignore[attr-defined]
    before = [x for x in owned() if x.owner is owner]
    owner.kept[1] = 1  # type: ignore[attr-defined]
    assert grown(before) == {"Planted.kept"}


def test_every_lock_is_made_where_it_survives_a_fork() -> None:
    makers = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier", "allocate_lock"}

    def makes_one(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return node.module == "threading" and any(a.name in makers for a in node.names)
        return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "threading" and node.attr in makers

    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "base" / "locks.py" and "threading" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text())) if makes_one(node)
    ]  # fmt: skip
    assert not found, f"use einsmith.base.locks: {found}"


def test_everything_can_be_forgotten() -> None:
    """And is made again, with equal results; weights and state stay."""

    def train(forget: bool) -> list[float]:
        es.manual_seed(0)
        step = es.TrainStep(nn.Linear(3, 2), es.functional.cross_entropy, es.optim.Adam(lr=0.1))
        x, y = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 1, 0])
        losses = []
        for n in range(4):
            if forget and n == 2:
                es.cache_clear()
                assert all(bound.held() == (0, 0) for bound in caches.BOUNDS)
            losses.append(step(x, y))
        return losses

    product = es.op("C[i,j] = sum[k](A[i,k] * B[k,j])")
    a = np.eye(3)
    before = product(a, a)
    assert train(True) == train(False)
    np.testing.assert_array_equal(product(a, a), before)
