"""Lower a contraction to its launches: packing, the tiles, the addition of partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple

from einsmith.base.errors import CompileError
from einsmith.codegen.loopnest.lanes import merge_in_tree
from einsmith.codegen.loopnest.nest import Builder
from einsmith.codegen.loopnest.walk import Bound, digits, part_range, strips, task_range
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.cost.roofline import may_be_one_task
from einsmith.kernels.contraction.config import Config, Direct, Tiled, sides, with_halos
from einsmith.kernels.contraction.emission import pack
from einsmith.kernels.contraction.emission.blocked import Blocked, CompanionPairs, beyond_limit
from einsmith.kernels.contraction.emission.direct import DirectLowering, partial_sums
from einsmith.kernels.contraction.emission.frame import limited_points, workspace
from einsmith.kernels.contraction.epilogue import Epilogue
from einsmith.kernels.contraction.geometry import Geometry, PartialSums
from einsmith.kernels.contraction.sums import parts_of
from einsmith.kernels.contraction.words import in_words
from einsmith.kernels.emit.cursor import LaneCursor
from einsmith.kernels.emit.epilogue_sums import place_sums
from einsmith.kernels.emit.loops import is_limited
from einsmith.kernels.pattern import Launch, Lowered
from einsmith.schedule.contraction_problem import Problem, slots_of, with_companion
from einsmith.schedule.kernel import Beyond, Kernel


def problem_of(kernel: Kernel, p: Problem, c: Tiled, target: Any) -> Problem:
    """Return the problem of a piece in a configuration: by elements or in words. Raises CompileError where there is
    none in words."""
    problem = in_words(kernel, p, c.words, target, c.tiles)
    if problem is None:
        raise CompileError(f"points of the axis i{c.words} cannot be taken in words{' in tiles' * c.tiles} in {c}")
    return problem


def without_empty_parts(kernel: Kernel, p: Problem, c: Config, target: Any) -> Config:
    """Return the configuration with no more parts of K than have points.

    A part without points would leave its partial sums unwritten.
    """
    if c.split == 1:
        return c
    if isinstance(c, Direct):
        units = p.count(c.k_outer)
    else:
        p = problem_of(kernel, p, c, target)
        problem_with_halos = with_halos(p, c.windows)
        assert problem_with_halos is not None
        units = problem_with_halos.halo_k_blocks or p.count(p.k)
    return replace(c, split=-(-units // -(-units // c.split)))


class _LaunchPart(NamedTuple):
    """Tasks of a piece in a launch, and a function that emits one of them: run(builder, tasks, task)."""

    tasks: int
    run: Callable[[Builder, int, SSAValue], None]


LAUNCH_STEPS = ("pack_once", "pack", "multiply", "add")
"""The launches, in order; all pieces share the launch of a step."""


def lower(
    kernel: Kernel, pieces: Sequence[Problem], configs: Sequence[Config], target: Any, pairs: CompanionPairs = ()
) -> Lowered:
    """Return the launches of a contraction: every piece with its own configuration, those of `pairs` together."""
    configs = [without_empty_parts(kernel, p, c, target) for p, c in zip(pieces, configs, strict=True)]
    out = Lowered(beyond=Beyond.COMPUTED if pairs else Beyond.UNTOUCHED)
    bases: list[int] = []
    parts_of_pieces: list[dict[str, _LaunchPart]] = []
    for p, c in zip(pieces, configs, strict=True):
        elements, parts = _launch_parts(kernel, p, c, target, out)
        bases.append(out.workspace)
        out.workspace += -(-elements * p.dtype.itemsize // 64) * 64
        parts_of_pieces.append(parts)
    for i, j in pairs:
        first, second = configs[i], configs[j]
        assert isinstance(first, Tiled) and isinstance(second, Tiled)
        companion_geometry = Geometry(kernel, first, target, pieces[i])
        piece_geometry = Geometry(kernel, second, target, with_companion(pieces[j], pieces[i]))
        parts_of_pieces[j]["multiply"] = _LaunchPart(
            piece_geometry.tasks, partial(_emit_pair, companion_geometry, piece_geometry, bases[i], bases[j])
        )
        del parts_of_pieces[i]["multiply"]
    for label in LAUNCH_STEPS:
        if parts_of_step := [parts[label] for parts in parts_of_pieces if label in parts]:
            out.launches.append(
                _launch(kernel, label, parts_of_step, count_tasks([x.tasks for x in parts_of_step], pieces, target))
            )
    return out


def count_tasks(tasks: Sequence[int], pieces: Sequence[Problem], target: Any) -> int:
    """Return the tasks of a launch, given those of its pieces; 1 if every piece has one task and all are short."""
    is_short = all(n == 1 for n in tasks) and may_be_one_task(sum(prod(p.extents) for p in pieces), target)
    return 1 if is_short else sum(tasks)


def _launch_parts(
    kernel: Kernel, p: Problem, c: Config, target: Any, out: Lowered
) -> tuple[int, dict[str, _LaunchPart]]:
    """Return the elements of the workspace of a piece, whose part begins where that of `out` ends, and its work by
    step. The parts of the kernel's sums come before it."""
    parts: dict[str, _LaunchPart] = {}
    if isinstance(c, Tiled):
        p = problem_of(kernel, p, c, target)
    if kernel.sums:
        assert isinstance(c, Tiled)
        out.sums, out.workspace = place_sums(kernel, parts_of(Geometry(kernel, c, target, p)), out.workspace)
    base = out.workspace
    if isinstance(c, Direct):
        sums, problem = partial_sums(p, c, target.lanes(p.dtype.itemsize)), p
        elements = sums.elements if c.split > 1 else 0
        parts["multiply"] = _LaunchPart(
            c.tasks * c.parts * c.split, lambda b, _, task: DirectLowering(kernel, c, target, b, p, base).run(task)
        )
        if not is_limited(c.outer):
            out.beyond = Beyond.COMPUTED
        elif c.split > 1:
            out.beyond = min(out.beyond, Beyond.TOUCHED)
    else:
        g = Geometry(kernel, c, target, p)
        sums, problem = g.partials, g.p
        elements, invariant = g.workspace_elements(), invariant_sides(kernel, p, c.swap)
        for label, is_invariant in (("pack_once", True), ("pack", False)):
            tiles = [x for name, x in (("a", g.a), ("b", g.b)) if (name in invariant) is is_invariant]
            if tasks := sum(pack.shared_tasks(g, x) for x in tiles):
                parts[label] = _LaunchPart(tasks, partial(pack.pack_shared, g, base, tiles))
        parts["multiply"] = _LaunchPart(g.tasks, lambda b, _, task: Blocked(b, g, base, None, out.sums).run(task))
        out.beyond = min(out.beyond, beyond_limit(g))
    if c.split > 1:
        tasks = min(sums.batch * sums.rows, target.cores * 2)
        parts["add"] = _LaunchPart(tasks, partial(add_parts, kernel, problem, sums, base))
    return elements, parts


def _emit_pair(companion: Geometry, g: Geometry, before: int, base: int, b: Builder, _: int, task: SSAValue) -> None:
    """Emit a task of a piece and its companion; `before` and `base` are where their workspaces begin (bytes)."""
    Blocked(b, g, base, Blocked(b, companion, before)).run(task)


def _launch(kernel: Kernel, label: str, parts: Sequence[_LaunchPart], count: int) -> Launch:
    """Return one launch of `count` tasks for the work of all pieces."""
    b = Builder(f"contraction_{label}_{kernel.root.digest.hex()[:8]}", len(kernel.buffers) + 1)
    if count == 1 or len(parts) == 1:
        for x in parts:
            x.run(b, x.tasks, b.task)
    else:
        _round_robin(b, parts, count)
    return Launch(b.finish(), count, label == "pack_once")


def _round_robin(b: Builder, parts: Sequence[_LaunchPart], count: int) -> None:
    """Emit the tasks of all pieces in turns, so that pieces which read and write near each other share the caches.

    Each turn has a number of tasks of each piece in proportion to the piece's total.
    """
    rounds = gcd(*(x.tasks for x in parts))
    turn, place = digits(b, b.task, (rounds, count // rounds))
    start = 0
    for tasks, run in parts:
        with task_range(b, place, start, tasks // rounds) as t:
            run(b, tasks, b.add(b.mul(turn, tasks // rounds), t))
        start += tasks // rounds


def invariant_sides(kernel: Kernel, p: Problem, swap: bool) -> str:
    """Return the sides, of "a" (M) and "b" (N), whose operands read only loop-invariant tensors: "", "a", "b" or
    "ab"."""
    if kernel.loop_invariant is None:
        return ""
    slots = {slot for slot, ref in enumerate(kernel.stages[0].args) if ref[1] in kernel.loop_invariant}
    return "".join(name for name, side in zip("ab", sides(p, swap), strict=True) if slots_of(side.operand) <= slots)


def add_parts(kernel: Kernel, p: Problem, sums: PartialSums, base: int, b: Builder, tasks: int, task: SSAValue) -> None:
    """Emit one of `tasks` tasks that add the partial sums of a range of rows in a fixed tree and run the epilogue.

    Args:
        kernel: the kernel
        p: the piece
        sums: the layout of the partial sums
        base: bytes of the workspace before this piece's part
        b: the builder
        tasks: number of tasks
        task: number of this task
    """
    n, elem = sums.lanes, elem_of(p.dtype)
    sources = workspace(b, base, p.dtype.itemsize, elem)
    epilogue = Epilogue(b, kernel, p, sums.n_axes, n, sums.padded)
    s = epilogue.sampler
    count: Bound = sums.batch * sums.rows
    if (points := limited_points(b, kernel, p, p.batch)) is not None:
        count = b.mul(points, sums.rows)
    elif sums.batch == 1 and (points := limited_points(b, kernel, p, sums.m_axes)) is not None:
        count = points
    with b.loop(*part_range(b, task, tasks, count)) as rows:
        batch, m = digits(b, rows.var, (sums.batch, sums.rows))
        row_part, batch_part = s.part_of(sums.m_axes, m), s.part_of(p.batch, batch)
        first = b.add(b.mul(rows.var, sums.row), sums.base)

        def emit_vector(at: SSAValue, count: int, _: Sequence[SSAValue]) -> None:
            x = _sum_parts(b, sums, sources, elem, b.add(first, at))
            limit = sums.columns if count < n else None
            epilogue.row([LaneCursor(s, at, limit, n).bind(batch_part)], row_part, [x])

        strips(b, 0, sums.columns, n, emit_vector)


def _sum_parts(b: Builder, sums: PartialSums, workspace: SSAValue, elem: str, at: SSAValue) -> SSAValue:
    """Return the sum of all parts at an offset: eight interleaved running sums, then a tree of these."""
    n, step, count = sums.lanes, sums.part, sums.parts

    def load(i: SSAValue | int) -> SSAValue:
        return b.load(workspace, b.add(at, b.mul(i, step)), elem, n)

    width = min(8, count)
    running_start = [load(i) for i in range(width)]
    full = count // width * width
    running: Sequence[SSAValue] = running_start
    if full > width:
        with b.loop(width, full, step=width, init=running_start) as loop:
            loop.next = [b.add(x, load(b.add(loop.var, i))) for i, x in enumerate(loop.carried)]
        running = loop.results
    out = list(running)
    for i in range(full, count):
        out[i - full] = b.add(out[i - full], load(i))
    return merge_in_tree(out, b.add)
