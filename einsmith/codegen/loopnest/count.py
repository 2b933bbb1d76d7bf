"""Count the instructions that a function executes, without running it: those of floats, of memory, and functions.

Loops whose bounds follow from the task's number are multiplied out; those whose bodies branch by the turn are walked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from einsmith.codegen.loopnest.nest import Function
from einsmith.codegen.ssa import FOLD, If, Loop, Op, SSAValue

MAX_STEPS = 100_000
"""Most regions that are walked for a function: 0.2 s; functions of longer loops that branch by the turn have no
counts."""
_FLOAT = frozenset("add sub mul div fma min max neg abs sign floor round sqrt dot tile_dot".split())
_MEMORY = frozenset("load store stream gather scatter tile_load tile_store".split())
SPECIAL = frozenset("exp log tanh sigmoid erf sin cos pow rsqrt random_bits".split())
"""Functions that are not one instruction."""


class InstructionCounts(NamedTuple):
    """The numbers of instructions, each of a scalar or of a whole vector.

    floats: of arithmetic on floats. moves: loads and stores. special: calls of functions that are not one instruction.
    """

    floats: int = 0
    moves: int = 0
    special: int = 0


class _UncountedError(Exception):
    """A bound comes from data, or too many regions are walked."""


def count_instructions(launches: Iterable[tuple[Function, int]]) -> InstructionCounts | None:
    """Return the instructions of launches, given as (function, number of tasks); None where bounds come from data.

    Branches that depend on data are counted as taken, seldom ones as not taken."""
    total = Counter[str]()
    try:
        for function, tasks in launches:
            walker = _Walker()
            for task in range(tasks):
                total += walker.region(function.body, {function.task: task})
    except _UncountedError:
        return None
    return InstructionCounts(total["floats"], total["moves"], total["special"])


Known = dict[SSAValue, int]


class _Walker:
    """Counts the instructions of regions, and knows which loops branch by the turn."""

    def __init__(self) -> None:
        self._steps = 0
        self._branching: dict[int, bool] = {}

    def region(self, body: list, known: Known) -> Counter[str]:
        """Return the counts of a region by kind; values that it computes of known integers are added to `known`."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _UncountedError
        out = Counter[str]()
        for x in body:
            if isinstance(x, Op):
                _evaluate(x, known)
                kind = _kind(x)
                if kind:
                    out[kind] += 1
            elif isinstance(x, If):
                if known.get(x.cond, not x.seldom):
                    out += self.region(x.body, known)
            else:
                out += self._loop(x, known)
        return out

    def _loop(self, loop: Loop, known: Known) -> Counter[str]:
        if loop.seldom and not (loop.lo in known and loop.hi in known):
            return Counter()
        if loop.lo not in known or loop.hi not in known:
            raise _UncountedError
        turns = range(known[loop.lo], known[loop.hi], loop.step)
        if not turns:
            known.update((r, known[i]) for r, i in zip(loop.results, loop.init, strict=True) if i in known)
            return Counter()
        if id(loop) not in self._branching:
            self._branching[id(loop)] = _branches_by(loop.body, {loop.var, *loop.carried})
        if not self._branching[id(loop)]:
            once = self.region(loop.body, known | {loop.var: turns[0]})
            return Counter({kind: n * len(turns) for kind, n in once.items()})
        out, state = Counter[str](), [known.get(v) for v in loop.init]
        inner = dict(known)
        for turn in turns:
            inner[loop.var] = turn
            for c, v in zip(loop.carried, state, strict=True):
                if v is None:
                    inner.pop(c, None)
                else:
                    inner[c] = v
            out += self.region(loop.body, inner)
            state = [inner.get(v) for v in loop.next]
        known.update((r, v) for r, v in zip(loop.results, state, strict=True) if v is not None)
        return out


def _branches_by(body: list, values: set[SSAValue]) -> bool:
    """Return whether bounds or conditions inside a region depend on some of the values."""
    for x in body:
        if isinstance(x, Op):
            if x.results and any(a in values for a in x.args):
                values.update(x.results)
        elif isinstance(x, If):
            if x.cond in values or _branches_by(x.body, values):
                return True
        else:
            if x.lo in values or x.hi in values or _branches_by(x.body, values):
                return True
            values.update(x.results)
    return False


def _kind(x: Op) -> str:
    if x.name in _MEMORY:
        return "moves"
    elem = x.result.elem if x.results else ""
    if x.name in SPECIAL and elem:
        return "special"
    is_float = elem.startswith(("f", "bf")) or x.name in ("dot", "tile_dot")
    return "floats" if is_float and x.name in _FLOAT else ""


def _evaluate(x: Op, known: Known) -> None:
    """Add the result of an instruction on known integers."""
    if not x.results or x.result.type.lanes or x.result.type.elem not in ("i64", "i1", "i32"):
        return
    args = [known.get(a) if a is not None else None for a in x.args]
    as_number = bool if x.result.elem == "i1" else int
    if x.name == "const":
        known[x.result] = as_number(x.attrs[0])
    elif None in args or not args:
        known.pop(x.result, None)
    elif x.name in FOLD:
        known[x.result] = FOLD[x.name](*args)
    elif x.name == "select":
        known[x.result] = args[1] if args[0] else args[2]  # type: ignore[assignment]
    elif x.name == "cast":
        known[x.result] = as_number(args[0])  # type: ignore[arg-type]
    else:
        known.pop(x.result, None)
