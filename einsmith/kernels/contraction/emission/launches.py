"""The launches of a contraction: packing, the tiles, the addition of partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any, NamedTuple

from einsmith.kernels.contraction.config import Config, Direct, InnerProducts, Tiled, sides, with_halos
from einsmith.kernels.contraction.emission import pack_shared, split_k
from einsmith.kernels.contraction.emission.blocked import Blocked
from einsmith.kernels.contraction.emission.direct import DirectLowering
from einsmith.kernels.contraction.emission.inner_product import InnerProduct, Shape
from einsmith.kernels.contraction.emission.joint_tile import Joint, JointTiles
from einsmith.kernels.contraction.geometry import Geometry
from einsmith.kernels.contraction.problem import Problem, slots_of, with_companion
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.loops.nest import Builder, Value
from einsmith.loops.walk import digits, task_range
from einsmith.plan.kernel import Kernel


def without_empty_parts(p: Problem, c: Config) -> Config:
    """The configuration with as many parts of K as have points: a part without any would leave its partial sums
    unwritten."""
    if not isinstance(c, Tiled) or c.split == 1:
        return c
    changed = with_halos(p, c.windows)
    assert changed is not None
    units = changed.heads or p.count(p.k)
    return replace(c, split=-(-units // -(-units // c.split)))


class _Work(NamedTuple):
    """Tasks of a piece in a launch, and what emits one of them: run(builder, tasks, task)."""

    tasks: int
    run: Callable[[Builder, int, Value], None]


STEPS = ("pack_once", "pack", "multiply", "add")
"""The launches, in order; a step's pieces share one."""


def lower(
    kernel: Kernel, found: Sequence[Problem], configs: Sequence[Config], target: Any, joint: Joint = ()
) -> Lowered:
    """The launches of a contraction, every piece with its own configuration, those of `joint` two and two."""
    configs = [without_empty_parts(p, c) for p, c in zip(found, configs, strict=True)]
    out = Lowered()
    bases: list[int] = []
    pieces: list[dict[str, _Work]] = []
    for p, c in zip(found, configs, strict=True):
        bases.append(out.workspace)
        elements, works = _works(kernel, p, c, target, out.workspace)
        out.workspace += -(-elements * p.dtype.itemsize // 64) * 64
        pieces.append(works)
    for i, j in joint:
        first, second = configs[i], configs[j]
        assert isinstance(first, Tiled) and isinstance(second, Tiled)
        both, where = with_companion(found[j], found[i]), (bases[i], bases[j])
        run = partial(_joint, kernel, (first, second), target, both, found[i], where)
        pieces[j]["multiply"] = pieces[j]["multiply"]._replace(run=run)
        del pieces[i]["multiply"]
    for label in STEPS:
        if part := [works[label] for works in pieces if label in works]:
            out.launches.append(_launch(kernel, label, part))
    return out


def _works(kernel: Kernel, p: Problem, c: Config, target: Any, base: int) -> tuple[int, dict[str, _Work]]:
    """Elements of the workspace of a piece, whose part begins at `base` bytes, and its work by step."""
    if isinstance(c, Direct):
        tasks = c.tasks * c.parts
        return 0, {"multiply": _Work(tasks, lambda b, _, task: DirectLowering(kernel, c, target, b, p).run(task))}
    works: dict[str, _Work] = {}

    def add(x: Geometry | Shape) -> None:
        works["add"] = _Work(min(x.B * x.M, target.cores * 2), partial(split_k.add, x, base))

    if isinstance(c, InnerProducts):
        s = Shape(kernel, c, target, p)
        works["multiply"] = _Work(s.tasks, lambda b, _, task: InnerProduct(b, s, base).run(task))
        add(s)
        return s.partials.elements, works
    g = Geometry(kernel, c, target, p)
    once = fixed_sides(kernel, p, c.swap)
    for label, fixed in (("pack_once", True), ("pack", False)):
        chosen = [x for name, x in (("a", g.a), ("b", g.b)) if (name in once) is fixed]
        if tasks := pack_shared.tasks(g, chosen):
            works[label] = _Work(tasks, partial(pack_shared.run, g, base, chosen))
    works["multiply"] = _Work(g.tasks, lambda b, _, task: Blocked(b, g, base).run(task))
    if c.split > 1:
        add(g)
    return g.workspace_elements(), works


def _joint(
    kernel: Kernel, configs: tuple[Tiled, Tiled], target: Any, p: Problem, other: Problem, bases: tuple[int, int],
    b: Builder, _: int, task: Value,
) -> None:
    JointTiles(kernel, configs, target, b, p, other, bases).run(task)


def _launch(kernel: Kernel, label: str, part: Sequence[_Work]) -> Launch:
    """One launch for the work of all pieces."""
    b = Builder(f"contraction_{label}_{kernel.root.digest.hex()[:8]}", len(kernel.buffers) + 1)
    count = sum(x.tasks for x in part)
    if len(part) == 1:
        part[0].run(b, count, b.task)
    else:
        _round_robin(b, part, count)
    return Launch(b.finish(), count, label == "pack_once")


def _round_robin(b: Builder, part: Sequence[_Work], count: int) -> None:
    """As many tasks of each piece follow each other as it has more than others, so that what one has brought into the
    caches serves the others, which read and write beside it."""
    rounds = gcd(*(x.tasks for x in part))
    turn, place = digits(b, b.task, (rounds, count // rounds))
    start = 0
    for tasks, run in part:
        with task_range(b, place, start, tasks // rounds) as t:
            run(b, tasks, b.add(b.mul(turn, tasks // rounds), t))
        start += tasks // rounds


def fixed_sides(kernel: Kernel, p: Problem, swap: bool) -> str:
    """"a", "b", both or none: the sides of M and N whose operands read only what stays the same while a loop runs."""
    if kernel.fixed is None:
        return ""
    fixed = {slot for slot, ref in enumerate(kernel.stages[0].args) if ref[1] in kernel.fixed}
    return "".join(name for name, side in zip("ab", sides(p, swap), strict=True) if slots_of(side.operand) <= fixed)
