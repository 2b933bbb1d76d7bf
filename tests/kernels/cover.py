"""Small kernels of every pattern at awkward sizes, in all configurations, and a choice of them that has every pair.

A case is a kernel, a target and a configuration; its traits are the sample's parameters, the vector's width and the
configuration's fields. `pairwise` chooses cases so that every two values of traits that occur together somewhere occur
together in a chosen one (Cohen et al., "The AETG system: an approach to testing based on combinatorial design", 1997;
here as a greedy cover of what can be had, because most combinations of fields are no configuration).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import chain, product
from math import comb
from typing import Any

import numpy as np

import einsmith as es
import einsmith.functional as F
from einsmith.api.tracing import trace_call
from einsmith.base import dtypes as dt
from einsmith.cost.facts import Target
from einsmith.ir.nodes import Graph
from einsmith.kernels import autoconfig
from einsmith.kernels.contraction import direct_boxes, epilogue, search, traffic
from einsmith.kernels.contraction.companions import companion_of, find_pairs
from einsmith.kernels.contraction.config import (
    Config,
    Direct,
    HaloBlock,
    Halos,
    Tiled,
    halo_blocks,
)
from einsmith.kernels.contraction.contraction_pattern import Configs
from einsmith.kernels.contraction.features import operand_plan
from einsmith.kernels.pattern import Lowered
from einsmith.passes.pipeline import run_passes
from einsmith.schedule.contraction_problem import Problem, problems, with_companion
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.planner import fuse
from tests.kernels import samples as s
from tests.kernels.runner import compare, fresh, reference, replaceable

NAMES = [*(p.name for p in autoconfig.PATTERNS), autoconfig.ROWS.name]
"""Of all patterns."""
EDGE = ("1", "w-1", "w", "w+1", "prime")
"""Sizes by name, w being a vector's lanes of f32."""
LONG = ("0", *EDGE)
PRIME = {4: 13, 8: 19, 16: 37}


def size(name: str, target: Target) -> int:
    w = target.lanes()
    return {"0": 0, "1": 1, "w-1": w - 1, "w": w, "w+1": w + 1, "prime": PRIME[w]}[name]


@dataclass(frozen=True)
class Sample:
    """make(**values) of one value a parameter, names of sizes having become sizes; `limits`: buffer -> the values
    below which its elements lie (positions in another tensor), given as the name of a parameter or a number."""

    make: Callable[..., Any]
    parameters: Mapping[str, Sequence[Any]]
    limits: Mapping[int, str | int] | None = None


def _conv(make: Callable[..., Any], strides: Sequence[int] = (1,)) -> Sample:
    def made(b: int, w: int, c: int, o: int, taps: int, pad: int, stride: int) -> Kernel:
        w = max(w, taps)
        more = (stride,) if len(strides) > 1 else ()
        return make(b, c, taps + 2, w, o, taps, taps, min(pad, taps // 2), *more)

    return Sample(made, {"b": (0, 1, 2), "w": EDGE, "c": (1, 3), "o": (1, 5, "w+1"), "taps": (1, 3, 5), "pad": (0, 2),
                         "stride": strides})  # fmt: skip


def _planes(make: Callable[..., Any], strides: Sequence[int] = (1,)) -> Sample:
    def made(b: int, w: int, c: int, taps: int, stride: int) -> Kernel:
        return make(b, c, taps + 3, max(w, taps), taps, taps // 2, *((stride,) if len(strides) > 1 else ()))

    return Sample(made, {"b": (0, 1, 2), "w": EDGE, "c": (1, 3), "taps": (3, 5), "stride": strides})


def _wide_filter(w: int, taps: int, pad: int, stride: int, dw: bool) -> Kernel:
    """Of which a row of results reads most of a row, or is padded further than that."""
    size = max(stride * (w - 1) + taps - 2 * pad, 1)
    return (s.depthwise_dw if dw else s.depthwise)(1, 2, size, size, taps, pad, stride)


def _step(m: int, n: int, fixed: tuple[int, ...], far: bool) -> Kernel:
    """A product in a loop, some operands of which stay what they are, its result too large for caches or not."""
    x = s.non_temporal(s.product(m, n, 9), far)
    return Kernel(x.stages, x.buffers, fixed)


def _zeros_between(h: int, w: int, stride: int, far: bool, after: bool) -> Kernel:
    """A result whose every phase has as many points, of which one has sums; with a stage that follows or not."""
    x = s.pointwise_dx(2, 3, h * stride, w * stride, 4, stride)
    return s.non_temporal(s.updated(x) if after else x, far)


def _updated_sums(along: str, n: int, k: int) -> Kernel:
    x = s.load(0, 0, 1) if along == "rows" else s.load(0, 1, 0)
    return s.updated(s.sum_of((n,), [(dt.f32, (n, k) if along == "rows" else (k, n))], (k,), x))


def _rows_of(f: Callable[..., Any], shapes: Callable[[int, int], Sequence[tuple[int, ...]]]) -> Callable[..., Any]:
    """The kernel that rows of f's graph are joined to."""

    def make(m: int, n: int) -> Rows | None:
        arguments = [np.zeros(x, np.float32) for x in shapes(m, n)]
        traced = trace_call(f, arguments, {}, frozenset())
        graph = Graph(traced.graph.inputs, traced.graph.outputs, (), ())
        calls = fuse(run_passes(graph), target=Target(cores=2)).calls
        return next((c.kernel for c in calls if isinstance(c.kernel, Rows)), None)

    return make


def _centred(x, g):
    return x - x.sum(1, keepdims=True), (x * g).sum(0)


def _causal(x):
    """A softmax of each row up to its own number."""
    return F.softmax(es.compute(x.shape, lambda i, j: es.where(j <= i, x[i, j], -np.inf)), 1)


def _numbered_channels(x):
    """Channels between images and pixels, less their means, times their numbers."""
    n, _, k = x.shape
    i, r = es.axes(n, k)
    mean = es.compute(x.shape[1:2], lambda c: es.mean(x[i, c, r], over=(i, r)))
    return es.compute(x.shape, lambda n, c, k: (x[n, c, k] - mean[c]) * c)


def _softmax_gradient(x, g):
    return es.grad(lambda x: (F.softmax(x, 1) * g).sum())(x)


def _matrix(m: int, n: int) -> Sequence[tuple[int, ...]]:
    return (m, n), (m, n)


SAMPLES: dict[str, Sample] = {
    "product": Sample(s.product, {"m": EDGE, "n": EDGE, "k": LONG, "kind": ("NN", "NT", "TN", "TT"),
                                  "dtype": (dt.f32, dt.f64)}),
    "long product": Sample(s.product, {"m": (1, 6, 67), "n": (1, "w+1", 131), "k": (701,),
                                       "kind": ("NN", "NT", "TN", "TT")}),
    "wide product": Sample(s.product, {"m": (1, 3, 37), "n": (1031,), "k": (9, 17), "kind": ("NN", "NT", "TN", "TT")}),
    "turned product": Sample(lambda n, k, kind: s.product(5, n, k, kind),
                             {"n": (12, "w+1"), "k": (8209, 2304), "kind": ("NT", "TT")}),
    "batched": Sample(s.batched, {"b": (1, 3), "m": EDGE, "n": EDGE, "k": LONG}),
    "biased product": Sample(lambda m, n, keep: s.biased(s.product(m, n, 9), 1, keep),
                             {"m": EDGE, "n": EDGE, "keep": (False, True)}),
    "step of a loop": Sample(_step, {"m": EDGE, "n": EDGE, "fixed": ((), (0,), (1,), (0, 1)), "far": (False, True)}),
    "updated product": Sample(lambda m, n, k: s.updated(s.product(m, n, k, "TN")), {"m": EDGE, "n": EDGE, "k": LONG}),
    "conv": _conv(s.conv, (1, 2)), "padded conv": _conv(s.padded_conv, (1, 2)), "conv dx": _conv(s.conv_dx),
    "conv dw": _conv(s.conv_dw),
    "deep conv": Sample(lambda w, pad, outside: (s.padded_conv if outside else s.conv)(1, 19, 5, w + 2, 5, 3, 3, pad),
                        {"w": EDGE, "pad": (0, 1), "outside": (False, True)}),
    "biased conv": Sample(lambda w, keep: s.biased(s.conv(2, 3, 4, w, 5, 3, 3, 1), 1, keep),
                          {"w": EDGE, "keep": (False, True)}),
    "strided dx": Sample(lambda w, k: s.strided_dx(3, w + k, k, 4), {"w": EDGE, "k": (2, 3, 5)}),
    "strided conv dx": Sample(lambda w, c, o: s.strided_conv_dx(2, c, 4, 2 * w, o),
                              {"w": EDGE, "c": (1, 5, "w+1"), "o": (1, 3)}),
    "pointwise dx": Sample(lambda h, w, stride: s.pointwise_dx(2, 3, h, w, 4, stride),
                           {"h": (2, 5), "w": EDGE, "stride": (2, 3)}),
    "zeros between": Sample(_zeros_between, {"h": (1, 2, 5), "w": EDGE, "stride": (2, 3), "far": (False, True),
                                             "after": (False, True)}),
    "depthwise": _planes(s.depthwise, (1, 2)), "depthwise dw": _planes(s.depthwise_dw, (1, 2)),
    "wide filter": Sample(_wide_filter, {"w": (1, 2, 3), "taps": (2, 4, 5), "pad": (0, 1, 3), "stride": (1, 2),
                                         "dw": (False, True)}),
    "slanted": Sample(s.slanted, {"b": (1, 2), "h": (1, 5), "w": EDGE, "n": (3, 5), "lane": (1, 2)}),
    "depthwise dx": _planes(s.depthwise_dx), "involution": _planes(s.involution),
    "involution dx": _planes(s.involution_dx), "involution dk": _planes(s.involution_dk),
    "capsule": Sample(lambda k, stride: s.capsule(1, 2, 5, k, stride), {"k": (1, 3, 4, 5, 8), "stride": (1, 2)}),
    "capsule da": Sample(lambda k, stride: s.capsule_da(1, 4, 5, k, stride), {"k": (1, 3), "stride": (1, 2)}),
    "shuffled": Sample(s.shuffled, {"m": (1, 3), "n": EDGE}),
    "bias relu": Sample(s.bias_relu, {"m": LONG, "n": LONG}),
    "functions": Sample(s.functions, {"n": EDGE, "dtype": (dt.f32, dt.f64)}),
    "mixed types": Sample(s.mixed_types, {"n": EDGE}),
    "integers": Sample(s.integers, {"n": EDGE, "dtype": (dt.i32, dt.i64)}),
    "flags": Sample(s.flags, {"n": EDGE}),
    "transpose": Sample(s.transpose, {"m": EDGE, "n": EDGE}),
    "gather": Sample(s.gather, {"rows": (1, 6), "n": EDGE}, {1: "rows"}),
    "strided read": Sample(s.strided_read, {"n": EDGE, "stride": (2, 3, 5)}),
    "pool backward": Sample(s.pool_backward, {"n": EDGE}, {0: 4}),
    "rows": Sample(s.rows, {"combiner": ("sum", "prod", "max", "argmin"), "n": EDGE,
                            "dtype": (dt.f32, dt.f64, dt.i32)}),
    "columns": Sample(s.columns, {"combiner": ("sum", "min", "argmax"), "n": EDGE, "k": EDGE}),
    "wide columns": Sample(lambda combiner, n, k: s.columns(combiner, n, k),
                           {"combiner": ("sum", "argmin"), "n": (261, 539), "k": (1, 5, 67)}),
    "updated sums": Sample(_updated_sums, {"along": ("rows", "columns"), "n": LONG, "k": LONG}),
    "empty": Sample(lambda combiner, m: s.columns(combiner, m, 0), {"combiner": ("sum", "prod"), "m": EDGE}),
    "whole": Sample(s.whole, {"combiner": ("sum", "max", "prod"), "m": EDGE, "n": (1, "w+1", 101)}),
    "scan": Sample(s.scan, {"combiner": ("sum", "prod", "max"), "m": EDGE, "n": (*EDGE, 301),
                            "along": ("rows", "columns"), "is_backward": (False, True),
                            "dtype": (dt.f32, dt.f64, dt.i32)}),
    "softmax sums": Sample(s.softmax_sums, {"n": EDGE}),
    "statistics": Sample(s.statistics, {"m": (1, 4), "n": EDGE}),
    "pool": Sample(s.pool, {"combiner": ("sum", "max", "argmax"), "n": EDGE}),
    "halo": Sample(s.halo, {"n": EDGE}),
    "max plus": Sample(s.max_plus, {"combiner": ("max", "argmin"), "m": EDGE, "n": EDGE, "k": EDGE[1:],
                                    "turned": (False, True)}),
    "diagonals": Sample(s.diagonals, {"n": EDGE}),
    "phases": Sample(s.phases, {"n": EDGE}),
    "sums and zeros": Sample(s.sums_and_zeros, {"n": EDGE, "k": EDGE}),
    "embedding": Sample(s.embedding, {"count": (1, 7), "tokens": LONG, "width": EDGE,
                                      "start": ("zeros", "computed", "memory")}, {0: "count"}),
    "selected": Sample(s.selected, {"combiner": ("argkmin", "argkmax"), "m": (1, 5), "n": EDGE,
                                    "dtype": (dt.f32, dt.f64, dt.i32)}),
    "histogram": Sample(s.histogram, {"bins": (1, 7), "n": LONG}, {0: "bins"}),
    "scatter window": Sample(s.scatter_window, {"m": EDGE, "n": EDGE, "along": (0, 1)}, {0: 5}),
    "softmax": Sample(_rows_of(lambda x: F.softmax(x, 1), lambda m, n: ((m, n),)), {"m": EDGE, "n": EDGE}),
    "softmax gradient": Sample(_rows_of(_softmax_gradient, _matrix), {"m": EDGE, "n": EDGE}),
    "causal softmax": Sample(_rows_of(_causal, lambda m, n: ((m, n),)), {"m": EDGE, "n": EDGE}),
    "numbered channels": Sample(_rows_of(_numbered_channels, lambda m, n: ((2, m, 48 + n),)), {"m": EDGE, "n": EDGE}),
    "centred": Sample(_rows_of(_centred, _matrix), {"m": EDGE, "n": EDGE}),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One kernel in one configuration for one target."""

    pattern: Any
    name: str
    kernel: Kernel
    config: Any
    target: Target
    limits: tuple[tuple[int, int], ...]
    traits: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        vector, cache = _kind(self.target)
        return f"{self.pattern.name}: {self.name} on vectors of {vector} bytes, caches from {cache}: {self.config}"

    @property
    def tolerance(self) -> float:
        return 2e-4 if self.pattern.name == "winograd" else 3e-5

    def lower(self) -> Lowered:
        return self.pattern.lower(self.kernel, self.config, self.target)

    def data(self) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
        """What the buffers hold before, and what the written ones must hold afterwards."""
        return _data(self.kernel, self.limits)

    def run(self, native: bool = True, backward: bool = False) -> None:
        """In buffers of their own and, where a result may be stored over what is read, there too."""
        base, want = self.data()
        lowered, target = self.lower(), self.target if native else None
        for over in ({}, *([found] if (found := replaceable(self.kernel)) else [])):
            compare(lowered, self.kernel, base, want, f"{self} {over or ''}", target, self.tolerance, backward, over)


@lru_cache(maxsize=64)
def _data(kernel: Kernel, limits: tuple[tuple[int, int], ...]) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
    base = fresh(kernel, 0)
    for a, b in zip(base, kernel.buffers, strict=True):
        if b.dtype.is_float:
            a /= 2
    rng = np.random.default_rng(1)
    for n, most in limits:
        base[n] = rng.integers(0, most, base[n].shape).astype(base[n].dtype)
    return base, reference(kernel, base)


def cases(
    targets: Sequence[Target],
    name: str,
    samples: Sequence[str] = tuple(SAMPLES),
    change: Callable[[Any], Any] = lambda kernel: kernel,
) -> Iterator[Case]:
    """Every configuration of the samples that the pattern of that name takes; of a sample's parameters, every pair.
    `change`: what becomes of a sample's kernel first."""
    pattern = autoconfig.pattern_of(name)
    for sample, target, values in chain.from_iterable(_shapes(tuple(targets), x) for x in samples):
        kernel, limits, traits = _make_kernel(sample, target, values)
        if kernel is None or isinstance(kernel, Rows) != (pattern is autoconfig.ROWS):
            continue
        kernel = change(kernel)
        if not pattern.match(kernel):
            continue
        target = replace(target, winograd=name == "winograd")
        what = f"{sample} {', '.join(f'{k}={v}' for k, v in values)}"
        for config in _configs(pattern, kernel, target):
            all_traits = (
                *traits,
                *((f"config {k}", v) for k, v in (*settings(config), *_forms(kernel, config, target))),
            )
            yield Case(pattern, what, kernel, config, target, limits, all_traits)


@lru_cache(maxsize=128)
def _shapes(targets: tuple[Target, ...], name: str) -> list[tuple[str, Target, tuple[tuple[str, Any], ...]]]:
    sample = SAMPLES[name]
    names = list(sample.parameters)
    rows = [(t, tuple(zip(names, v, strict=True))) for v in product(*sample.parameters.values()) for t in targets]
    return [(name, *rows[n]) for n in pairwise([(("target", _kind(t)), *v) for t, v in rows])]


def _kind(target: Target) -> tuple[int, int]:
    return target.vector_bytes, target.l1


@lru_cache(maxsize=8192)
def _make_kernel(name: str, target: Target, values: tuple[tuple[str, Any], ...]) -> tuple[Any, tuple, tuple]:
    sample = SAMPLES[name]
    sized = {k: size(v, target) if v in LONG else v for k, v in values}
    limits = tuple((n, sized[x] if isinstance(x, str) else x) for n, x in (sample.limits or {}).items())
    traits = (("sample", name), ("target", _kind(target)), *values)
    return sample.make(**sized), limits, traits


def _configs(pattern: Any, kernel: Kernel, target: Target) -> Sequence[Any]:
    """Return the configurations that a pattern proposes; for contractions, all candidates of every piece."""
    if pattern.name != "contraction":
        return pattern.configs(kernel, target)
    pieces = [_candidates(kernel, p, target) for p in problems(kernel.root) or ()]
    if len(pieces) == 1:  # what is proposed is among them
        return [Configs((c,)) for c in pieces[0]]
    most = max(map(len, pieces))
    every = [Configs(tuple(c[i % len(c)] for c in pieces)) for i in range(most)]
    joined = (x for c in every if (x := _join_pairs(kernel, c, target)) is not None)
    return [*dict.fromkeys([*pattern.configs(kernel, target), *every, *joined])]


def _join_pairs(kernel: Kernel, chosen: Configs, target: Target) -> Configs | None:
    """Return `chosen` with every possible pair of pieces computed together; None where no pair is possible."""
    problems_of_pieces = problems(kernel.root) or ()
    pieces, joined = list(chosen.pieces), []
    for first, second in find_pairs(problems_of_pieces):
        c = pieces[second]
        companion_config = (
            companion_of(kernel, problems_of_pieces[first], problems_of_pieces[second], c, target)
            if isinstance(c, Tiled)
            else None
        )
        if companion_config is not None:
            pieces[first] = companion_config
            joined.append((first, second))
    return Configs(tuple(pieces), tuple(joined)) if joined else None


def _forms(kernel: Kernel, config: Any, target: Target) -> Iterator[tuple[str, str]]:
    """Yield the form of the epilogue of each tiled piece of a contraction."""
    if not isinstance(config, Configs) or isinstance(kernel, Rows):
        return
    problems_of_pieces = list(problems(kernel.root) or ())
    for first, second in config.joint:
        problems_of_pieces[second] = with_companion(problems_of_pieces[second], problems_of_pieces[first])
    companions = {first for first, _ in config.joint}
    for n, (p, c) in enumerate(zip(problems_of_pieces, config.pieces, strict=True)):
        if n not in companions and isinstance(c, Tiled) and c.depth == 1:
            s = operand_plan(kernel, p, c.windows, c.swap, c.rows, target)
            yield "form", epilogue.choose_form(s, p, c.mr, c.nv, c.split)[1]


def _candidates(kernel: Kernel, p: Problem, target: Target) -> list[Config]:
    """Return all candidates of a piece, with those that are otherwise proposed for large pieces only.

    These are the direct form, vectors along K, blocks of K, and halo copies that cut an axis or K into short blocks or
    that vectors of N read.
    """
    out = dict.fromkeys(search.candidates(kernel, (p,), target))
    changes = ((direct_boxes, "MIN_PRODUCTS", 1), (direct_boxes, "MIN_K_VECTOR_POINTS", 1),
               (traffic, "MAX_BLOCK_POINTS", 64), (search, "halo_copies_of", _enumerate_small_halos),
               (search, "MAX_UNAMORTISED_ROWS", 1 << 30))  # fmt: skip
    before = [(where, name, getattr(where, name)) for where, name, _ in changes]
    try:
        for where, name, value in changes:
            setattr(where, name, value)
        more = list(search.candidates(kernel, (p,), target))
    finally:
        for where, name, value in before:
            setattr(where, name, value)
    out |= dict.fromkeys(c for c in more if not isinstance(c, Tiled) or c.kc or c.windows)
    return list(out)


def _enumerate_small_halos(p: Problem) -> list[Halos]:
    """Return the halo copies worth pricing, with blocks of at most a few kilobytes as well."""
    cuts = {((i, cut),): None for limit in (1 << 9, 1 << 11) for i in (0, 1) for cut in halo_blocks(p, i, limit)}
    return [*search.WHOLE_HALOS, *cuts]


def settings(config: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a configuration, large numbers by how large they are. Configurations of parts that are patterns
    themselves are left out: the parts' own cases have them."""
    if isinstance(config, Configs):
        yield "joint", bool(config.joint)
        yield from dict.fromkeys(chain.from_iterable(map(_of_piece, config.pieces)))
        return
    if isinstance(config, Tiled | Direct):
        yield "kind", type(config).__name__
    part = "direct " if isinstance(config, Direct) else ""
    names = [f.name for f in fields(config)] if is_dataclass(config) else getattr(config, "_fields", ())
    for name in names:
        value = getattr(config, name)
        if isinstance(value, Configs) or hasattr(value, "_fields"):
            continue
        elif name == "windows":
            yield name, tuple((i, "cut" if isinstance(x, HaloBlock) else x) for i, x in value)
        elif isinstance(value, tuple):
            yield part + name, len(value)
        elif isinstance(value, bool) or not isinstance(value, int):
            yield part + name, value
        else:
            yield part + name, value if value <= 2 else "some" if value <= 6 else "many"


def each_value(configs: Sequence[Any]) -> list[Any]:
    """Return few of the configurations of a contraction, or of one piece, which have every setting (see `settings`)
    that any of them has."""
    return [configs[n] for n in pairwise([list(settings(c)) for c in configs], of=1)]


@lru_cache(maxsize=1 << 15)
def _of_piece(config: Config) -> tuple[tuple[str, Any], ...]:
    """The settings of a piece, which those of many kernels have."""
    return tuple(settings(config))


def pairwise(items_of_traits: Sequence[Sequence[tuple[str, Any]]], of: int = 2) -> list[int]:
    """Numbers of items whose traits have every pair of traits (or, `of` being 1, every trait) that some item has; the
    same ones in every run."""
    numbers: dict[tuple[str, Any], int] = {}
    items = [sorted({numbers.setdefault(t, len(numbers)) for t in traits}) for traits in items_of_traits]
    masks = [sum(1 << t for t in x) for x in items]  # sets of traits, as bits
    met = [1 << t for t in range(len(numbers))] if of == 2 else [0] * len(numbers)  # with each trait, in what is chosen

    def gain(n: int) -> int:
        x, mask = items[n], masks[n]
        if of == 1:
            return sum(not met[t] for t in x)
        return sum([(mask & ~met[t]).bit_count() for t in x]) // 2

    heap = [(-comb(len(x), of), n) for n, x in enumerate(items)]
    heapq.heapify(heap)
    out = []
    while heap:  # what an item adds only shrinks: it is counted again when it comes up
        before, n = heapq.heappop(heap)
        now = gain(n)
        if now and (not heap or -now <= heap[0][0]):
            for t in items[n]:
                met[t] |= masks[n]
            out.append(n)
        elif now:
            heapq.heappush(heap, (-now, n))
    return sorted(out)
