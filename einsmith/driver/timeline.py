"""Show runs of a program as spans in time: its kernels, what each thread worked on, and the memory that is alive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from einsmith.base.recording import WORKER_ROWS, Event
from einsmith.driver.binding import Binding
from einsmith.driver.live import KINDS, live_bytes
from einsmith.ir import labels
from einsmith.runtime.steps import AllReduce, Await, BeginLoop, EndLoop, Notify, Step, StepTimes, Together
from einsmith.schedule.plan import KernelCall, LoopCall, Plan
from einsmith.schedule.printer import label
from einsmith.tuning.kernels.decisions import name_of

MAX_LABELS = 3
"""Most labels in the name of a kernel; further ones are counted."""
RUN = "run"
"""Category of whole runs, and of steps that are no kernels."""
MEMORY = "intermediate results alive (bytes)"
"""Name of the counter's track."""


class _Row(NamedTuple):
    """How a step is shown. call: number of its kernel's call in the plan; None for a step that belongs to no kernel."""

    name: str
    category: str
    call: int | None
    in_loop: bool
    args: Mapping[str, Any]


class Timeline:
    """What is shown of every run of a program: names, categories and facts of its steps, and its live memory."""

    def __init__(self, binding: Binding):
        plan = binding.compiled.plan
        self.title, self.threads = f"run of {len(binding.calls)} kernels", binding.compiled.threads
        self.rows = _rows(binding, name_kernels(plan))
        live = live_bytes(binding.lives(), plan, binding.roles)
        self.memory = [{kind: int(live[kind][n]) for kind in KINDS} for n in range(len(plan.calls))]

    @property
    def count(self) -> int:
        """Return the greatest number of events that a run can record."""
        return 2 + len(self.rows) * (1 + self.threads) + len(self.memory)


@dataclass(frozen=True)
class RecordedRun:
    """A run of a program, from `begun` to `ended` (nanoseconds). times: those of its steps; None where only the whole
    run is known."""

    timeline: Timeline
    begun: int
    ended: int
    times: StepTimes | None

    @property
    def threads(self) -> int:
        """Return the number of threads that have rows."""
        return 0 if self.times is None else self.timeline.threads

    @property
    def count(self) -> int:
        """Return the most events of the run."""
        return self.timeline.count

    def events(self, row: int) -> Iterator[Event]:
        """Yield the run, its steps as the calling thread sees them, what each thread worked on, and the live memory.

        Of the steps of a loop only the sums over all turns are known: they are shown one after the other from the
        loop's beginning on.

        Args:
            row: row of the calling thread.
        """
        end = self.begun
        if self.times is not None:
            for event in self._steps(self.times, row):
                end = max(end, event.start + (event.duration or 0))
                yield event
            yield Event(MEMORY, end, None, "", None, dict.fromkeys(KINDS, 0))
        yield Event(self.timeline.title, self.begun, max(end, self.ended) - self.begun, RUN, row, {})

    def _steps(self, times: StepTimes, row: int) -> Iterator[Event]:
        reached = times.starts[times.starts > 0]
        first = int(reached.min()) if reached.size else self.begun
        shift = 0 if self.begun <= first <= self.ended else self.begun - first  # another clock than Python's
        at, in_loop, call = self.begun, False, None
        for n, shown in enumerate(self.timeline.rows):
            seen = int(times.seen[n])
            if not seen:
                continue  # not reached, or run by the header of steps that run together
            start = at if in_loop and shown.in_loop else max(at, int(times.starts[n, 0]) + shift)
            at, in_loop = start + seen, shown.in_loop
            if shown.call is not None and shown.call != call:
                call = shown.call
                yield Event(MEMORY, start, None, "", None, self.timeline.memory[call])
            yield Event(shown.name, start, seen, shown.category, row, shown.args)
            if shown.call is None:
                continue
            busy = [*map(int, times.busy[n])]
            if not any(busy):  # the calling thread alone
                busy[0] = seen
            for k, worked in enumerate(busy):
                if worked:
                    begun = start if shown.in_loop else max(start, int(times.starts[n, k]) + shift)
                    yield Event(shown.name, begun, worked, shown.category, WORKER_ROWS + k, {})


def name_kernels(plan: Plan) -> list[str]:
    """Return the name of each kernel of a plan: the labels (`ir.labels`) of what it computes, in order, or else its
    root in the words of the formula language."""
    return [_name(plan.calls[n], call) for n, call, _ in plan.kernel_calls()]


def _name(outer: KernelCall | LoopCall, call: KernelCall) -> str:
    for nodes in (call.nodes, outer.nodes):
        shown = list(dict.fromkeys(str(x) for node in nodes if (x := labels.label_of(node)) is not None))
        if shown:
            more = len(shown) - MAX_LABELS
            return ", ".join(shown[:MAX_LABELS]) + (f" and {more} more" if more > 0 else "")
    return label(call)


def _rows(binding: Binding, names: Sequence[str]) -> list[_Row]:
    """Return how each step of a program is shown."""
    kernels: list[_Row] = []
    compiled = zip(binding.calls, binding.compiled.kernels, binding.roles, strict=True)
    for (place, _, turns), (call, code, role), name in zip(
        binding.compiled.plan.kernel_calls(), compiled, names, strict=True
    ):
        facts: dict[str, Any] = {
            "kernel": name_of(call.kernel)[:8],
            "computes": label(call),
            "pattern": f"{code.pattern} {code.config}".strip(),
            "predicted_us": round(code.seconds * turns * 1e6, 3),
        }
        facts |= {"turns": turns} if turns > 1 else {}
        facts |= {"recomputes": True} if call.is_recomputation else {}
        kernels.append(_Row(name, role, place, False, facts))
    rows: list[_Row] = []
    depth = 0
    for n, (step, owner) in enumerate(zip(binding.steps, binding.call_of_step, strict=True)):
        depth += isinstance(step, BeginLoop) - isinstance(step, EndLoop)
        if owner < len(kernels):
            row = kernels[owner]
            if isinstance(step, Together):
                members = list(dict.fromkeys(binding.call_of_step[n + 1 : n + 1 + step.count]))
                row = row._replace(name=" | ".join(dict.fromkeys(kernels[m].name for m in members)))
            rows.append(row._replace(in_loop=depth > 0))
        else:
            rows.append(_Row(_kind_of(step), RUN, None, depth > 0, {}))
    return rows


def _kind_of(step: Step) -> str:
    kinds = {AllReduce: "sum over devices", Await: "wait", Notify: "notice"}
    return kinds.get(type(step), "check")
