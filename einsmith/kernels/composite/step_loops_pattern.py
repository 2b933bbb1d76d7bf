"""Lower loops whose steps are kernels of one thread: the code of the kernels, one after the other, within a loop.

What a step stores and the same step or the next one loads again at the same place stays in registers, if both are
instructions outside of inner loops: a recurrence of a few numbers waits for arithmetic alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from einsmith.codegen.loopnest.nest import Builder, Function
from einsmith.codegen.loopnest.splice import splice
from einsmith.codegen.ssa import Op, SSAValue, elem_of, operations
from einsmith.cost.facts import Target
from einsmith.cost.roofline import launch_overhead
from einsmith.kernels.composite.parts import InTurn
from einsmith.kernels.pattern import Cost, Launch, Lowered
from einsmith.schedule.step_loops import StepLoop, StepPlace


class StepLoops(InTurn):
    """The pattern of a `StepLoop`."""

    name = "steps"

    def match(self, kernel: Any) -> bool:
        return isinstance(kernel, StepLoop)

    def cost(self, kernel: StepLoop, config: str, target: Target) -> Cost:
        """Return the cost of all steps on one core, and of a single launch."""
        step, n = self.cost_in_turn(kernel, target), kernel.steps
        arithmetic = max(step.arithmetic, step.memory)
        return Cost(n * (arithmetic + target.overheads.step_seconds), 0.0, n * step.special, launch_overhead(1, target))

    def lower(self, kernel: StepLoop, config: str, target: Target) -> Lowered:
        return Lowered([Launch(_StepsEmitter(kernel, self.lower_members(kernel, target)).emit(), 1)])


class _StepsEmitter:
    """The emitter of one loop.

    places: the parts of buffers that a step accesses, each once. lowered: the launches of each kernel of a step."""

    def __init__(self, kernel: StepLoop, lowered: Sequence[Lowered]):
        self.kernel, self.lowered = kernel, lowered
        uses = [m.step_places for m in kernel.members]
        self.places = list(dict.fromkeys(p for of in uses for p in of))
        self.uses = [[self.places.index(p) for p in of] for of in uses]
        self.b = Builder(f"steps_{kernel.digest.hex()[:12]}", len(kernel.buffers) + 1)
        local = [self.b.alloc(elem_of(x.dtype), x.size) for x in kernel.local]
        self.memory = [*self.b.buffers[:-1], *local]
        self.dtypes = [x.dtype for x in (*kernel.buffers, *kernel.local)]

    def emit(self) -> Function:
        """Return the function of all steps."""
        b, steps = self.b, self.kernel.steps
        before, step = self._emit_part("before", True), self._emit_part("step", False)
        workspaces = [b.alloc("i8", x.workspace) for x in self.lowered]
        scratch = b.alloc("i8", max(before.scratch_bytes, step.scratch_bytes))
        first = [*self._point(b.const(steps - 1 if self.kernel.reverse else 0)), *workspaces]
        splice(b, before, first, scratch, b.const(0))
        registers = _Registers(step, self.places, self.kernel.reverse)
        inits = [b.load(first[x.place], x.start, x.stored.elem, x.stored.type.lanes) for x in registers.carried]
        with b.loop(0, steps, init=inits, runs=True) as turns:
            t = b.sub(steps - 1, turns.var) if self.kernel.reverse else turns.var
            loads = {**registers.same_step}
            for x, value in zip(registers.carried, turns.carried, strict=True):
                loads |= dict.fromkeys(x.loads, value)
            values = splice(b, step, [*self._point(t), *workspaces], scratch, b.const(0), loads)
            turns.next = [values[x.stored] for x in registers.carried]
        return b.finish()

    def _point(self, t: SSAValue) -> list[SSAValue]:
        """Return the pointers to the places in step t."""
        b, out = self.b, []
        for p in self.places:
            at = b.add(b.mul(t, p.move), p.first)
            at = b.op("mod", at, p.ring) if p.ring else at
            out.append(b.address(self.memory[p.buffer], b.add(at, p.offset), elem_of(self.dtypes[p.buffer])))
        return out

    def _emit_part(self, name: str, once: bool) -> Function:
        """Return the function of a step over the places and the kernels' workspaces, or of those launches that are
        needed once."""
        count = len(self.places)
        b = Builder(f"{self.b.name}_{name}", count + len(self.lowered))
        for n, (lowered, uses) in enumerate(zip(self.lowered, self.uses, strict=True)):
            for launch in lowered.launches:
                if launch.loop_invariant is once:
                    pointers = [*(b.buffers[p] for p in uses), b.buffers[count + n]]
                    scratch = b.alloc("i8", launch.function.scratch_bytes)
                    for task in range(launch.tasks):
                        splice(b, launch.function, pointers, scratch, b.const(task))
        return b.finish()


class _Access(NamedTuple):
    """A load or a store of neighbouring elements of a place, from `start` on; `value` is loaded or stored."""

    is_store: bool
    place: int
    start: int
    value: SSAValue


class _Carried(NamedTuple):
    """A value that a step stores and the next one loads from a place; `loads`: the loads' results."""

    place: int
    start: int
    stored: SSAValue
    loads: list[SSAValue]


class _Registers:
    """What stays in registers of a step's function.

    same_step: the values that replace loads of what the step has stored, by the loads' results.
    carried: the values that replace loads of what the step before has stored."""

    def __init__(self, step: Function, places: Sequence[StepPlace], reverse: bool):
        self.places, self.turn = places, -1 if reverse else 1
        self.same_step: dict[SSAValue, SSAValue] = {}
        carried: dict[tuple[int, int], _Carried] = {}
        accesses, unclear = self._find_accesses(step)
        accesses = [x for x in accesses if places[x.place].buffer not in unclear]
        stores = [x for x in accesses if x.is_store]
        before: list[_Access] = []
        for x in accesses:
            if x.is_store:
                before.append(x)
            elif (s := next((s for s in reversed(before) if self._meet(s, x, 0)), None)) is not None:
                self.same_step[x.value] = s.value
            elif (s := next((s for s in reversed(stores) if self._meet(s, x, 1)), None)) is not None:
                carried.setdefault((x.place, x.start), _Carried(x.place, x.start, s.value, [])).loads.append(x.value)
        self.carried = list(carried.values())

    def _find_accesses(self, step: Function) -> tuple[list[_Access], set[int]]:
        """Return (the plain loads and stores at the function's top, in order; the numbers of buffers with other stores,
        or of which two accesses overlap in part)."""
        number = {x: n for n, x in enumerate(step.buffers[: len(self.places)])}
        constant = {x.result: x.attrs[0] for x in step.body if isinstance(x, Op) and x.name == "const"}
        accesses, unclear = list[_Access](), set[int]()
        outside = {id(x) for x in step.body}
        for x in operations(step.body):
            used = [number[a] for a in x.operands if a in number]
            value, mask = None, None
            if x.name == "store":
                value, mask = x.args[2:]
            elif x.name == "load":
                value, mask = x.result, x.args[2]
            at = x.args[1] if used and id(x) in outside and value is not None else None
            if value is not None and at in constant and mask is None:
                accesses.append(_Access(x.name == "store", used[0], constant[at], value))
            elif x.name not in ("load", "gather", "prefetch"):
                unclear.update(self.places[n].buffer for n in used)
        spans: dict[int, set[tuple[int, int]]] = {}
        moves: dict[int, set[tuple[int, int]]] = {}
        for a in accesses:
            p = self.places[a.place]
            spans.setdefault(p.buffer, set()).add((p.offset + a.start, max(1, a.value.type.lanes)))
            if a.is_store:
                moves.setdefault(p.buffer, set()).add((p.move, p.ring))
        for n, of in spans.items():
            ordered = sorted(of)
            overlap = any(a + m > b for (a, m), (b, _) in zip(ordered, ordered[1:], strict=False))
            if overlap or len(moves.get(n, ())) > 1:
                unclear.add(n)
        return accesses, unclear

    def _meet(self, store: _Access, load: _Access, steps: int) -> bool:
        """Return whether a load reads exactly what the store wrote `steps` steps earlier."""
        p, q = self.places[store.place], self.places[load.place]
        if store.value.type != load.value.type or (p.buffer, p.move, p.ring) != (q.buffer, q.move, q.ring):
            return False
        distance = p.first - q.first - self.turn * steps * p.move
        same = distance % p.ring == 0 if p.ring else distance == 0
        return same and p.offset + store.start == q.offset + load.start
