"""Other configurations than the cheapest: which a kernel takes, which cells are reached by it, and how it is forced."""

from __future__ import annotations

import difflib
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from einsmith.checking import trap
from einsmith.codegen.cache import build, objects
from einsmith.codegen.llvm import jit
from einsmith.cost.facts import Target
from einsmith.driver import compile, cpu_kernels
from einsmith.ir.nodes import Reduce
from einsmith.kernels import autoconfig
from einsmith.kernels.rows import rows_cost
from einsmith.runtime.pool import native_entry
from einsmith.schedule import coalesce, pipeline, row_nests
from einsmith.schedule.kernel import Rows
from einsmith.schedule.layout import forced
from tests import caches

Cell = tuple[str, str, str, str]
"""(pattern, gene of the configuration and its value, element type, length of the tail along an axis)."""
Picker = Callable[[Any, Target, Any, Sequence[Any]], int]
"""(kernel, target, its choice, its alternatives) -> the number of an alternative; -1 for the choice itself."""
STREAMED = {"3": (3, 8, False), "16": (16, 32, True)}
"""(rows of a block, fewest rows of a sweep, whether local buffers are turned) of nests that are forced."""
MOST = 400
"""Alternatives that are looked at."""


class Seen:
    """What compiling has met since `clear`: kernels, cells reached, and cells of configurations that were at hand."""

    def __init__(self) -> None:
        self.reached: dict[Cell, None] = {}
        self.offered: dict[Cell, None] = {}
        self.kernels = 0
        self.forced: list[tuple[str, str]] = []
        self.patterns: list[str] = []


@contextmanager
def observed(seen: Seen, pick: Picker | None = None) -> Iterator[None]:
    """Within, every kernel that is compiled is noted, and compiled in the configuration that `pick` says: the disk,
    which knows kernels by their chosen configurations, is left alone then."""
    whole, plain = cpu_kernels.lower, autoconfig.choose
    disk = objects.read, objects.write
    inside = [0]

    def choose(kernel: Any, target: Target) -> Any:
        found = plain(kernel, target)
        if not inside[0]:
            return found
        if pick is not None:
            others = found.alternatives[:MOST]
            n = pick(kernel, target, found, others)
            if n >= 0:
                name, config, cost = others[n]
                found = replace(found, pattern=autoconfig.pattern_of(name), config=config, cost=cost)
                seen.forced.append((name, str(config)))
            if len(seen.offered) < 100_000:
                for name, config, _ in others:
                    seen.offered.update(dict.fromkeys(cells(kernel, target, name, config)))
        seen.reached.update(dict.fromkeys(cells(kernel, target, found.pattern.name, found.config)))
        seen.patterns.append(found.pattern.name)
        return found

    def lower(kernel: Any, target: Target, *decided: Any) -> Any:
        inside[0] += 1
        seen.kernels += 1
        try:
            return whole(kernel, target, *decided)
        finally:
            inside[0] -= 1

    if pick is not None:
        forget()
        _leave_disk_alone()
    cpu_kernels.lower, autoconfig.choose = lower, choose
    try:
        yield
    finally:
        cpu_kernels.lower, autoconfig.choose = whole, plain
        objects.read, objects.write = disk
        if pick is not None:
            forget()


@contextmanager
def drawn_orders(seed: int) -> Iterator[None]:
    """Within, intermediate tensors have their dimensions in memory in orders that are drawn, and lie inside others that
    they are copied to or from, wherever they can; as they are for seed 0."""
    if not seed:
        yield
        return
    draw = random.Random(seed)
    with forced.forcing(lambda t, orders: draw.choice(orders)), coalescing(seed):
        yield


@contextmanager
def coalescing(seed: int) -> Iterator[None]:
    """Within, each copy is left out that can be, in a way that the seed draws, whatever bytes are live at once."""

    def seconds(kernel: Any) -> float:
        parts = [p for p in kernel.parts if len(p.stages) == 1]
        draw = zlib.crc32(repr((seed, kernel.stages, kernel.buffers)).encode()) * 1e-15
        return sum(len(coalesce.copy_pieces(p.root)) for p in parts) + draw

    def without_copies(plan: Any, _: Any, *more: Any) -> Any:
        return coalesce.coalesce_copies(plan, seconds, *more)

    with (
        mock.patch.object(pipeline, "coalesce_copies", without_copies),
        mock.patch.object(coalesce, "_peak_bytes", lambda plan, outside: 0),
    ):
        yield


@contextmanager
def streaming(blocks: str) -> Iterator[None]:
    """Within, chains of reductions run in row blocks of a size in STREAMED, nested wherever they can be; "" forces
    nothing."""
    if not blocks:
        yield
        return
    block, least, turned = STREAMED[blocks]
    configs = rows_cost.configs

    def nests(rows: Any, target: Target) -> list:
        every = configs(rows, target)
        return [c._replace(turned=turned) for c in every if c.nested] or every

    changed: tuple[tuple[Any, str, Any], ...] = (
        (compile, "predicted", lambda kernel, target: float(not isinstance(kernel, Rows))),
        (row_nests, "MIN_SWEEP_ROWS", least),
        (rows_cost, "REUSING_BLOCKS", (block,)),
        (rows_cost, "TILES", (block + 1,)),
        (rows_cost, "configs", nests),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    _forget_nests()
    try:
        for module, name, value in changed:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        _forget_nests()


def nested_depth(kernel: Any, target: Target) -> int:
    """How many row blocks that keep local results lie inside each other in the chosen configuration of a kernel."""
    if not isinstance(kernel, Rows) or kernel.takes_sums:
        return 0
    inner = rows_cost.kernels_of(kernel, autoconfig.choose(kernel, target).config)
    return bool(kernel.local) + max((nested_depth(x.kernel, rows_cost.one_core(target)) for x in inner), default=0)


def _forget_nests() -> None:
    row_nests.block_kernels.cache_clear()
    caches.forget(caches.CHOICES)
    forget()


def forget(code: bool = False) -> None:
    """Compiles anew what is asked for next. With `code` what no program holds is unloaded."""
    caches.forget(caches.CODE)
    caches.forget_code()
    if code:
        jit.unload()


def in_memory() -> None:
    """From now on no code is read from disk or written there, and no other process compiles."""
    native_entry()
    if os.environ.get("EINSMITH_CHECK", "0") not in ("", "0"):  # another checkout has other names for it
        trap._native()
    _leave_disk_alone()
    build.PARALLEL_FROM = 1 << 30


def _leave_disk_alone() -> None:
    objects.read = lambda key: None  # type: ignore[assignment]
    objects.write = lambda key, entry: None  # type: ignore[assignment]


def nearest(wanted: Sequence[tuple[str, str]]) -> Picker:
    """What is most like the wanted (pattern, configuration) of a kernel, whose number counts; else the choice."""
    left = [tuple(x) for x in wanted]

    def pick(kernel: Any, target: Target, choice: Any, others: Sequence[Any]) -> int:
        exact = [n for n, (name, config, _) in enumerate(others) if (name, str(config)) in left]
        if exact:
            name, config, _ = others[exact[0]]
            if len(left) > 1:
                left.remove((name, str(config)))
            return exact[0]
        best, at = 0.6, -1
        for n, (name, config, _) in enumerate(others):
            for p, c in left:
                like = difflib.SequenceMatcher(None, c, str(config)).quick_ratio() if p == name else 0.0
                if like > best:
                    best, at = like, n
        return at

    return pick


def packing(rng: np.random.Generator) -> Picker:
    """A configuration that packs an operand of a kernel whose constants are packed once, for three of four kernels."""

    def pick(kernel: Any, target: Target, choice: Any, others: Sequence[Any]) -> int:
        packed = [n for n, (_, config, _) in enumerate(others) if "=buffer" in str(config)]
        return int(rng.choice(packed)) if kernel.loop_invariant and packed and rng.integers(0, 4) else -1

    return pick


# ---------------------------------------------------------------------------------------------------------------- cells


def cells(kernel: Any, target: Target, pattern: str, config: Any) -> Iterator[Cell]:
    root = kernel.root
    dtype = root.dtypes[0]
    lanes = target.lanes(max(1, dtype.itemsize))
    lengths = [f"out {_tail(kernel.shape[-1] if kernel.shape else 1, lanes)}"]
    body = getattr(root.parts[0], "body", None)
    if isinstance(body, Reduce) and body.extents:
        lengths.append(f"sum {_tail(body.extents[-1], lanes)}")
    if isinstance(kernel, Rows):
        lengths.append(f"rows {_tail(kernel.rows, lanes)}")
    genes = [f"vector={target.vector_bytes}", *dict.fromkeys(f"{k}={v}" for k, v in genes_of(config))]
    for gene in genes:
        for length in lengths:
            yield pattern, gene, dtype.name, length


def _tail(n: int, lanes: int) -> str:
    if n < lanes:
        return "one" if n == 1 else "short"
    return {0: "0", 1: "1", lanes - 1: "-1"}.get(n % lanes, "some")


def genes_of(config: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration, large numbers by how large they are."""
    if is_dataclass(config) and not isinstance(config, type):
        for f in fields(config):
            yield from _gene(f.name, getattr(config, f.name))
    elif isinstance(config, tuple):
        for x in config:
            yield from genes_of(x)


def _gene(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        yield name, value
    elif isinstance(value, int):
        yield name, value if -8 <= value <= 8 else f"2**{value.bit_length()}"
    elif isinstance(value, tuple):
        yield name, len(value)
        for x in value:
            if is_dataclass(x):
                yield from genes_of(x)
    elif is_dataclass(value):
        yield name, type(value).__name__
        yield from genes_of(value)
    else:
        yield name, str(value)[:20]
