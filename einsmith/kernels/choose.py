"""Chooses a pattern and its configuration for a kernel by predicted cost, with no search, and says why.

A pattern answers match, configs, cost and lower (see `kernels.pattern.Pattern`); `register` adds a user's own.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from einsmith.caches import Bound, Cache
from einsmith.errors import CompileError
from einsmith.expr.nodes import Reduce, Template
from einsmith.kernels.composite.im2col import Im2col
from einsmith.kernels.composite.split_axes import split_kernels
from einsmith.kernels.composite.winograd import Winograd
from einsmith.kernels.contraction.pattern import PATTERN as CONTRACTION
from einsmith.kernels.elementwise import Pointwise
from einsmith.kernels.footprint import touched
from einsmith.kernels.pattern import Cost, Lowered, Pattern
from einsmith.kernels.reduction.pattern import Reduction
from einsmith.kernels.rows.pattern import RowBlocks
from einsmith.kernels.scatter.pattern import ScatterAdd
from einsmith.kernels.stencil.pattern import StencilPattern
from einsmith.locks import cached_property
from einsmith.plan.kernel import Kernel, Rows, Stage
from einsmith.target.facts import Target


class ByKind:
    """A root some of whose pieces have a reduction and some not (the border of a strided backward pass, where nothing
    arrives): each kind is a kernel of its own, with its own pattern, into the same output. Not where a contraction
    stores the others along with its sums, which goes through the output once."""

    name = "by kind"

    def match(self, kernel: Kernel) -> bool:
        return len(_kinds(kernel)) > 1 and not CONTRACTION.match(kernel)

    def bound(self, kernel: Kernel, target: Target) -> float:
        """What no configurations' rank is below: every kind goes through its buffers."""
        sizes = [sum(touched(k)) for k in _kinds(kernel)]
        return sum(target.seconds_for_bytes(n, n, target.cores) for n in sizes)

    def best(
        self, kernel: Kernel, target: Target, limit: float = float("inf")
    ) -> tuple[tuple[str, Any], ...] | None:
        chosen = []
        for k in _kinds(kernel):
            found = choose_below(k, target, limit)
            if found is None:  # nor is that of them all
                return None
            chosen.append((found.pattern.name, found.config))
        return tuple(chosen)

    def configs(self, kernel: Kernel, target: Target) -> list[tuple[tuple[str, Any], ...]]:
        found = self.best(kernel, target)
        return [] if found is None else [found]

    def cost(self, kernel: Kernel, config: tuple[tuple[str, Any], ...], target: Target) -> Cost:
        costs = [pattern_of(name).cost(k, c, target) for k, (name, c) in zip(_kinds(kernel), config, strict=True)]
        return Cost(
            sum(c.arithmetic for c in costs), sum(c.memory for c in costs), sum(c.special for c in costs),
            sum(c.launch for c in costs),
        )

    def lower(self, kernel: Kernel, config: tuple[tuple[str, Any], ...], target: Target) -> Lowered:
        out = Lowered()
        for k, (name, c) in zip(_kinds(kernel), config, strict=True):
            part = pattern_of(name).lower(k, c, target)
            out.launches += part.launches
            out.workspace = max(out.workspace, part.workspace)
        return out


@lru_cache(maxsize=1024)
def _kinds(kernel: Kernel) -> list[Kernel]:
    """The kernel's pieces with a reduction, and those without, as kernels."""
    root = kernel.root
    if root.is_scatter:
        return [kernel]
    parts = [[p for p in root.parts if isinstance(p.body, Reduce) is kind] for kind in (True, False)]
    if not all(parts):
        return [kernel]
    first = kernel.stages[0]
    stages = [Stage(Template(root.shape, root.params, tuple(p)), first.args, first.outputs) for p in parts]
    return [Kernel((stage, *kernel.stages[1:]), kernel.buffers, kernel.fixed) for stage in stages]


class SplitAxesConfig(NamedTuple):
    """Which of the kernels whose axes are split, and a pattern's name and its configuration for that."""

    which: int
    pattern: str
    config: Any

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


class SplitAxes:
    """A reduction some of whose axes stand under quotients and remainders: a kernel in which these are axes."""

    name = "by digits"

    def match(self, kernel: Kernel) -> bool:
        return bool(split_kernels(kernel))

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> SplitAxesConfig | None:
        best = None
        for n, split in enumerate(split_kernels(kernel)):
            found = choose_below(split, target, limit)
            if found is not None:
                best, limit = SplitAxesConfig(n, found.pattern.name, found.config), found.cost.rank
                if found.pattern is CONTRACTION and CONTRACTION.instead(split, found.config):
                    break  # as many products in smaller parts
        return best

    def configs(self, kernel: Kernel, target: Target) -> list[SplitAxesConfig]:
        every = [(n, x) for n, k in enumerate(split_kernels(kernel)) for x in choose(k, target).alternatives]
        return [SplitAxesConfig(n, name, c) for n, (name, c, _) in every]

    def cost(self, kernel: Kernel, config: SplitAxesConfig, target: Target) -> Cost:
        return pattern_of(config.pattern).cost(split_kernels(kernel)[config.which], config.config, target)

    def instead(self, kernel: Kernel, config: SplitAxesConfig) -> Sequence[str]:
        """Where the digits make a product of matrices, others would read one element at a time."""
        return ("contraction", "by kind", "reduction", "im2col") if config.pattern == CONTRACTION.name else ()

    def lower(self, kernel: Kernel, config: SplitAxesConfig, target: Target) -> Lowered:
        return pattern_of(config.pattern).lower(split_kernels(kernel)[config.which], config.config, target)


def pattern_of(name: str) -> Any:
    """The pattern of that name."""
    return ROWS if name == ROWS.name else next(p for p in PATTERNS if p.name == name)


PATTERNS: list[Pattern] = [
    Pointwise(), StencilPattern(), Winograd(), SplitAxes(), CONTRACTION, ByKind(), Reduction(), ScatterAdd(), Im2col(),
]  # fmt: skip
"""Asked in order, those first that are mostly chosen where they match: what is known to cost more is not asked further.
Of equal costs the earlier pattern's stands."""


@dataclass(frozen=True)
class Choice:
    """The cheapest pattern and configuration of a kernel; `took`: seconds of this thread that finding it took, with the
    collections of the process's garbage that fell into it."""

    pattern: Any
    config: Any
    cost: Cost
    kernel: Kernel | Rows
    target: Target
    took: float

    @cached_property
    def alternatives(self) -> list[tuple[str, Any, Cost]]:
        """Every pattern that takes the kernel in every configuration worth a measurement: (pattern name, configuration,
        cost), cheapest first, the chosen one among them. Computed when asked for: a choice leaves out what cannot win.
        """
        found = [(self.pattern, self.config, self.cost)]
        for pattern in _patterns(self.kernel, self.target):
            if pattern.match(self.kernel):
                known = [(pattern, c, cost_of(pattern, self.kernel, c, self.target))
                         for c in pattern.configs(self.kernel, self.target)]
                found += [x for x in known if x[:2] != found[0][:2]]
        found.sort(key=lambda f: f[2].rank)
        return [(p.name, c, k) for p, c, k in found]


_CHOSEN: Cache[tuple, Choice] = Cache(Bound("choices of kernels", 4096))
ROWS = RowBlocks(lambda kernel, target: choose(kernel, target))
"""The pattern of every Rows; its members are configured by the others."""


def register(pattern: Pattern) -> None:
    """Adds a pattern; it is chosen wherever it matches and its cost is the lowest. Raises CompileError where it lacks
    an answer, or has the name of another pattern."""
    missing = [x for x in ("name", "match", "configs", "cost", "lower") if not hasattr(pattern, x)]
    if missing:
        raise CompileError(f"{pattern!r} is no pattern: it has no {', '.join(missing)}")
    if pattern.name in (ROWS.name, *(p.name for p in PATTERNS)):
        raise CompileError(f"there is a pattern {pattern.name!r} already: every one has a name of its own")
    PATTERNS.append(pattern)
    _CHOSEN.clear()


def identity() -> bytes:
    """What tells one set of patterns from another in a key of compiled code: the names, and the source of patterns that
    are not Einsmith's own; for one without a source file, a number that no other process has."""
    sources = [source(type(p)) for p in PATTERNS]
    return b" ".join(p.name.encode() + (_NOWHERE if s is None else s) for p, s in zip(PATTERNS, sources, strict=True))


_NOWHERE = os.urandom(16)


@lru_cache(maxsize=64)
def source(pattern: type) -> bytes | None:
    """What tells a pattern's code from other code of that name: a hash of its file; empty for Einsmith's own, None
    where there is no file."""
    if pattern.__module__.partition(".")[0] == __name__.partition(".")[0]:
        return b""
    try:
        return hashlib.blake2b(Path(inspect.getfile(pattern)).read_bytes(), digest_size=16).digest()
    except (OSError, TypeError):
        return None


def choose(kernel: Kernel | Rows, target: Target) -> Choice:
    """The pattern and configuration of the lowest predicted cost. Raises CompileError where no pattern matches."""
    found = choose_below(kernel, target, float("inf"))
    if found is None:
        names = ", ".join(p.name for p in PATTERNS)
        raise CompileError(f"no pattern ({names}) takes the kernel {describe(kernel)}")
    return found


def choose_below(kernel: Kernel | Rows, target: Target, limit: float) -> Choice | None:
    """As `choose`, if the lowest cost's rank is below `limit`; else, or where no pattern matches, None."""
    key = (kernel, target, len(PATTERNS))
    found = _CHOSEN.get(key)
    if found is None:
        found = _choose(kernel, target, limit)
        if found is not None:
            _CHOSEN.put(key, found)
    return found if found is not None and found.cost.rank < limit else None


def _patterns(kernel: Kernel | Rows, target: Target) -> Sequence[Any]:
    """The patterns that are asked; those with `allowed` only where that says so of the target."""
    if isinstance(kernel, Rows):
        return [ROWS]
    return [p for p in PATTERNS if not hasattr(p, "allowed") or p.allowed(target)]


def _choose(kernel: Kernel | Rows, target: Target, limit: float) -> Choice | None:
    start = time.thread_time()
    best: tuple[Any, Any, Cost] | None = None
    out: set[str] = set()
    for pattern in _patterns(kernel, target):
        if pattern.name in out or not pattern.match(kernel):
            continue
        bound = getattr(pattern, "bound", None) if limit < float("inf") else None
        if bound is not None and bound(kernel, target) >= limit:
            continue
        find = getattr(pattern, "best", None)
        first = None if find is None else find(kernel, target, limit)
        for config in pattern.configs(kernel, target) if find is None else () if first is None else (first,):
            cost = cost_of(pattern, kernel, config, target)
            if cost.rank < limit:
                best, limit = (pattern, config, cost), cost.rank
        if best is not None and best[0] is pattern and hasattr(pattern, "instead"):
            out.update(pattern.instead(kernel, best[1]))
    return None if best is None else Choice(*best, kernel, target, time.thread_time() - start)


def cost_of(pattern: Any, kernel: Kernel | Rows, config: Any, target: Target) -> Cost:
    """What a pattern says of a configuration. Raises CompileError where that is no cost."""
    cost = pattern.cost(kernel, config, target)
    if not (isinstance(cost, Cost) and 0.0 <= cost.rank < float("inf")):
        raise CompileError(
            f"pattern {pattern.name!r} answers {cost!r} for the cost of {config} on the kernel {describe(kernel)}; a"
            " Cost of finite seconds, none below 0, is needed"
        )
    return cost


def lowered(chosen: Choice) -> Lowered:
    """The launches of a choice. Raises CompileError where the pattern's answer cannot be run."""
    pattern, kernel = chosen.pattern, chosen.kernel
    out = pattern.lower(kernel, chosen.config, chosen.target)
    wrong = _unfit(out, len(kernel.buffers))
    if wrong:
        raise CompileError(f"pattern {pattern.name!r} lowers {chosen.config} on {describe(kernel)} to {wrong}")
    return out


def _unfit(out: Any, buffers: int) -> str:
    """What keeps a pattern's answer from being run."""
    if not isinstance(out, Lowered):
        return f"{out!r}; a Lowered is needed"
    for x in out.launches:
        if len(x.function.buffers) != buffers + 1:
            return f"{x.function.name} of {len(x.function.buffers)} buffers; those of the kernel, {buffers}, and the" \
                " workspace are needed"
        if x.tasks < 0:
            return f"{x.tasks} tasks of {x.function.name}"
    return "" if out.workspace >= 0 else f"a workspace of {out.workspace} bytes"


def lower(kernel: Kernel | Rows, target: Target) -> Lowered:
    """The launches of a kernel in its chosen configuration."""
    return lowered(choose(kernel, target))


def describe(kernel: Kernel | Rows) -> str:
    """A kernel in a line: what each stage is, its shape, and the buffers."""
    kinds = []
    for stage in kernel.stages:
        part = stage.template.parts[0]
        body = getattr(part, "body", None)
        kinds.append("scatter" if stage.template.is_scatter else getattr(body, "combiner", "pointwise"))
    sizes = ", ".join(f"{b.dtype.name}{list(b.shape)}" for b in kernel.buffers)
    return f"{' + '.join(kinds)} over {list(kernel.shape)} of {sizes}"


def explain(kernel: Kernel | Rows, target: Target, count: int = 5) -> str:
    """The choice in numbers: predicted microseconds of the cheapest `count` configurations."""
    chosen = choose(kernel, target)
    lines = [describe(kernel)]
    for i, (name, config, cost) in enumerate(chosen.alternatives[:count]):
        lines.append(
            f"  {'*' if i == 0 else ' '} {cost.seconds * 1e6:10.2f} us  {name} {config}  (arithmetic "
            f"{cost.arithmetic * 1e6:.2f}, memory {cost.memory * 1e6:.2f}, special {cost.special * 1e6:.2f}, "
            f"launch {cost.launch * 1e6:.2f})"
        )
    return "\n".join(lines)
