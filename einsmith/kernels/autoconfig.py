"""Chooses a pattern and its configuration for a kernel by predicted cost, with no search, and says why.

A pattern answers match, configs, cost and lower (see `kernels.kernel.Pattern`); `register` adds a user's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from einsmith.errors import CompileError
from einsmith.expr.kernel import Kernel
from einsmith.kernels.contraction import Contraction
from einsmith.kernels.kernel import Cost, Lowered, Pattern
from einsmith.kernels.pointwise import Pointwise
from einsmith.kernels.reduction import Reduction
from einsmith.kernels.scatter import ScatterAdd
from einsmith.target.facts import Target

PATTERNS: list[Pattern] = [Pointwise(), Contraction(), Reduction(), ScatterAdd()]
"""Asked in order; of equal costs the earlier pattern's stands."""


class Choice(NamedTuple):
    """The cheapest pattern and configuration, and every alternative (pattern name, configuration, cost), cheapest
    first, the chosen one among them."""

    pattern: Pattern
    config: Any
    cost: Cost
    alternatives: list[tuple[str, Any, Cost]]


_CHOSEN: dict[tuple, Choice] = {}


def register(pattern: Pattern) -> None:
    """Adds a pattern; it is chosen wherever it matches and its cost is the lowest."""
    PATTERNS.append(pattern)
    _CHOSEN.clear()


def choose(kernel: Kernel, target: Target) -> Choice:
    """The pattern and configuration of the lowest predicted cost. Raises CompileError where no pattern matches."""
    key = (kernel, target, len(PATTERNS))
    if key not in _CHOSEN:
        _CHOSEN[key] = _choose(kernel, target)
    return _CHOSEN[key]


def _choose(kernel: Kernel, target: Target) -> Choice:
    found = []
    for pattern in PATTERNS:
        if pattern.match(kernel):
            found += [(pattern, c, pattern.cost(kernel, c, target)) for c in pattern.configs(kernel, target)]
    if not found:
        names = ", ".join(p.name for p in PATTERNS)
        raise CompileError(f"no pattern ({names}) takes the kernel {describe(kernel)}")
    found.sort(key=lambda f: f[2].seconds)
    pattern, config, cost = found[0]
    return Choice(pattern, config, cost, [(p.name, c, k) for p, c, k in found])


def lower(kernel: Kernel, target: Target) -> Lowered:
    """The launches of a kernel in its chosen configuration."""
    chosen = choose(kernel, target)
    return chosen.pattern.lower(kernel, chosen.config, target)


def describe(kernel: Kernel) -> str:
    """A kernel in a line: what each stage is, its shape, and the buffers."""
    kinds = []
    for stage in kernel.stages:
        part = stage.template.parts[0]
        body = getattr(part, "body", None)
        kinds.append("scatter" if stage.template.is_scatter else getattr(body, "combiner", "pointwise"))
    sizes = ", ".join(f"{b.dtype.name}{list(b.shape)}" for b in kernel.buffers)
    return f"{' + '.join(kinds)} over {list(kernel.shape)} of {sizes}"


def explain(kernel: Kernel, target: Target, count: int = 5) -> str:
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
