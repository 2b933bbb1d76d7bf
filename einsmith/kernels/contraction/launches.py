"""The launches of a contraction: packing, the tiles, the addition of partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

from einsmith.kernels.contraction.blocked import Lowering
from einsmith.kernels.contraction.config import HALO_BYTES, Config, sides, with_halos
from einsmith.kernels.contraction.direct import DirectLowering
from einsmith.kernels.contraction.inner_product import InnerProductLowering
from einsmith.kernels.contraction.joint_tile import Joined, Joint
from einsmith.kernels.contraction.problem import Problem, slots_of, with_companion
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.loops.nest import Builder, Value
from einsmith.plan.kernel import Kernel


def _lowering(kernel: Kernel, c: Config, target: Any, b: Builder, p: Problem) -> Any:
    if c.direct is not None:
        return DirectLowering(kernel, c, target, b, p)
    return (InnerProductLowering if c.dot else Lowering)(kernel, c, target, b, p)


def without_empty_parts(p: Problem, c: Config) -> Config:
    """The configuration with as many parts of K as have points: a part without any would leave its partial sums
    unwritten."""
    if c.split == 1 or c.dot:
        return c
    changed = with_halos(p, c.windows, HALO_BYTES)
    units = changed.heads if changed is not None and changed.heads else p.count(p.k)
    return replace(c, split=-(-units // -(-units // c.split)))


def lower(
    kernel: Kernel, found: Sequence[Problem], configs: Sequence[Config], target: Any, joint: Joint = ()
) -> Lowered:
    """The launches of a contraction, every piece with its own configuration, those of `joint` two and two."""
    configs = [without_empty_parts(p, c) for p, c in zip(found, configs, strict=True)]
    count = len(kernel.buffers) + 1
    name = kernel.root.digest.hex()[:8]
    bases: list[int] = []
    mates = {second: first for first, second in joint}
    out = Lowered()
    steps: list[list[tuple[int, Callable[[Builder, int, Value], None]]]] = [[], [], [], []]
    for i, (p, c) in enumerate(zip(found, configs, strict=True)):
        probe = _lowering(kernel, c, target, Builder("probe", count), p)
        elements = sum(probe.buffer_elements()) + (probe.partials * c.split if c.split > 1 else 0)
        bases.append(out.workspace)
        out.workspace += -(-elements * p.dtype.itemsize // 64) * 64
        once = fixed_sides(kernel, p, c.swap)
        for step, chosen in ((0, once), (1, "".join(x for x in "ab" if x not in once))):
            if tasks := probe.pack_tasks(chosen):
                steps[step].append((tasks, _runner(kernel, p, c, target, bases[i], "pack", chosen)))
        tasks = probe.B * c.split if c.dot else probe.tasks
        if i in mates:
            both = [(found[n], configs[n], n) for n in (mates[i], i)]
            steps[2].append((tasks, _joint_runner(kernel, both, bases, target)))
        elif i not in mates.values():
            steps[2].append((tasks, _runner(kernel, p, c, target, bases[i], "multiply")))
        if c.split > 1:
            rows = min(probe.B * probe.M, target.cores * 2)
            steps[3].append((rows, _runner(kernel, p, c, target, bases[i], "add")))
    for part, label in zip(steps, ("pack_once", "pack", "multiply", "add"), strict=True):
        if not part:
            continue
        b = Builder(f"contraction_{label}_{name}", count)
        tasks = rounds = gcd(*(n for n, _ in part))
        if len(part) == 1:
            part[0][1](b, rounds, b.task)
        elif rounds >= 4 * target.cores and rounds % target.cores == 0:
            _together(b, part, rounds)
        else:
            _in_turn(b, part, rounds)
            tasks = sum(n for n, _ in part)
        out.launches.append(Launch(b.finish(), tasks, label == "pack_once"))
    return out


_Runs = Sequence[tuple[int, Callable[[Builder, int, Value], None]]]
"""Of each piece the number of tasks, and what emits one of them."""


def _together(b: Builder, part: _Runs, rounds: int) -> None:
    """Each of `rounds` tasks runs its share of the tasks of every piece, one piece after the other, so that what one
    has brought into the caches serves the others, which read and write beside it."""
    for tasks, run in part:
        each = tasks // rounds
        with b.loop(0, each) as loop:
            run(b, tasks, b.add(b.mul(b.task, b.const(each)), loop.var))


def _in_turn(b: Builder, part: _Runs, rounds: int) -> None:
    """As `_together`, with a task for each of theirs: where there would be too few for all cores."""
    each = b.const(sum(tasks for tasks, _ in part) // rounds)
    turn, place = b.op("floordiv", b.task, each), b.op("mod", b.task, each)
    start = 0
    for tasks, run in part:
        t = b.sub(place, b.const(start))
        with b.if_(b.op("and", b.op("le", b.const(0), t), b.op("lt", t, b.const(tasks // rounds)))):
            run(b, tasks, b.add(b.mul(turn, b.const(tasks // rounds)), t))
        start += tasks // rounds


def fixed_sides(kernel: Kernel, p: Problem, swap: bool) -> str:
    """"a", "b", both or none: the sides of M and N whose operands read only what stays the same while a loop runs."""
    if kernel.fixed is None:
        return ""
    fixed = {slot for slot, ref in enumerate(kernel.stages[0].args) if ref[1] in kernel.fixed}
    return "".join(name for name, side in zip("ab", sides(p, swap), strict=True) if slots_of(side.operand) <= fixed)


def _runner(kernel: Kernel, p: Problem, c: Config, target: Any, base: int, what: str, chosen: str = ""):
    def run(b: Builder, tasks: int, task: Value) -> None:
        low = _settled(_lowering(kernel, c, target, b, p), base)
        if what == "pack":
            low.run_pack(task, chosen)
        elif what == "multiply":
            low.run(task)
        else:
            low.run_reduce(task, tasks)

    return run


def _joint_runner(kernel: Kernel, both: Sequence[tuple[Problem, Config, int]], bases: Sequence[int], target: Any):
    """What emits a task of a mate and of the piece that makes it; both: problem, configuration, number."""
    (mate, other, i), (p, c, j) = both

    def run(b: Builder, tasks: int, task: Value) -> None:
        low = Joined(kernel, (other, c), target, b, with_companion(p, mate), mate)
        _settled(low.mate, bases[i])
        _settled(low, bases[j]).run(task)

    return run


def _settled(low: Any, base: int) -> Any:
    """A lowering whose part of the workspace begins at `base` bytes."""
    if base:
        b = low.b
        low.home = b.address(b.buffers[-1], b.const(base // low.p.dtype.itemsize), low.elem)
    return low
