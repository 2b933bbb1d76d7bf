"""Propose configurations of a program's kernels while it trains: the exploring thread of an exploration."""

from __future__ import annotations

import queue

from einsmith.schedule.kernel import Kernel
from einsmith.tuning.programs import exploring
from einsmith.tuning.programs.exploring import POLL_SECONDS, ExplorationState, Turns
from einsmith.tuning.programs.trial import KernelRecord

FULL_GAIN_SHARE = 0.05
"""Fraction of a step that other configurations are expected to save, from which on exploring may cost MAX_COST_SHARE;
below it, exploring may cost less, in proportion."""
MIN_KERNEL_SHARE = 0.004
"""Least fraction of the time of all kernels in a step that a kernel takes to be worth tuning."""
MAX_BOUND_SHARE = 0.95
"""Largest ratio of a kernel's roofline bound to its time (both in seconds) at which the kernel is worth tuning; beyond
it, the kernel is already close to the bound."""
MIN_GAIN_SHARE = 0.01
"""Least fraction of a step's usual time that all kernels together are expected to save; exploring ends when the
expected gain is smaller."""
MAX_FAILURES = 12
"""Consecutive configurations of a kernel without a gain after which the kernel is not tuned any more."""


class Proposer(Turns):
    """The turns of the exploring thread: it has configurations proposed, of the kernel that may gain most."""

    def __init__(self, state: ExplorationState):
        super().__init__(state)
        self.unbounded: dict[Kernel, str] = {}
        """Kernels whose roofline bound is not yet known, with the configuration that the program has."""
        self.chosen: Kernel | None = None
        """Kernel of the next proposal; it stays here while the budget has no time for proposing."""
        self._awaited_count = 0
        """Number of configurations under test beside which no kernel could be chosen; the next choice waits until one
        of them is decided. 0 after a choice."""
        self._proposed: tuple[Kernel, str] | None = None
        """Configuration that waits for room in the queue."""

    def turn(self) -> float:
        """Make the records and bounds of the kernels at first, then have configurations proposed and put them into the
        queue. Return the seconds to wait until the next call."""
        if not self.state.kernels:
            self.begin()
        if self.unbounded:
            return POLL_SECONDS if self.state.work(self.bound_kernel) is None else 0.0
        if self._proposed is None:
            if self.chosen is None:
                self._try_choice()
            if (kernel := self.chosen) is None:
                return POLL_SECONDS
            answer = self.state.work(self.state.workshop.propose, kernel)
            if answer is None or self.state.ending.up:
                return POLL_SECONDS
            self.chosen = None
            if answer.predicted is not None:
                self.state.kernels[kernel].predicted = answer.predicted
            if answer.text is None:
                self.state.kernels[kernel].over = answer.fault or "nothing is left to try"
                return 0.0
            self.state.under_test.add(kernel)
            self._proposed = kernel, answer.text
            return self.state.compute_rest(answer.seconds)
        try:
            self.state.proposals.put_nowait(self._proposed)
        except queue.Full:
            return POLL_SECONDS
        self._proposed = None
        return 0.0

    def begin(self) -> None:
        """Create the records of all kernels from the profiled steps, and exclude kernels that are not worth tuning."""
        seconds = {k: min(step[k] for step in self.state.profiled) for k in self.state.profiled[0]}
        step_seconds = sum(seconds.values())
        runs: dict[Kernel, int] = {}
        for call, turns in zip(self.state.run.calls, self.state.run.turns, strict=True):
            runs[call.kernel] = runs.get(call.kernel, 0) + turns
        for call, compiled in zip(self.state.run.calls, self.state.run.kernels, strict=True):
            k = call.kernel
            measured = self.state.kernels[k] = KernelRecord(seconds[k] / runs[k], runs[k])
            if compiled.decision and not compiled.tuned:
                measured.over = "its configuration is set by hand"
            elif seconds[k] < MIN_KERNEL_SHARE * step_seconds:
                measured.over = "it takes a negligible part of the time"
            else:
                self.state.report(k, compiled.decision, measured.seconds)
                self.unbounded[k] = compiled.decision

    def bound_kernel(self) -> bool:
        """Compute the roofline bound of one more kernel, and exclude the kernel if its time is close to the bound. Look
        up how its configuration, if it is a recorded one, compares to the model's choice, to which predictions refer.
        """
        kernel, text = self.unbounded.popitem()
        measured = self.state.kernels[kernel]
        measured.least = self.state.workshop.least(kernel)
        if text:
            measured.part = self.state.workshop.find_part(kernel, text)
        if measured.seconds * MAX_BOUND_SHARE < measured.least:
            measured.over = "it is close to its roofline bound"
        return True

    def _try_choice(self) -> None:
        """Choose the next kernel if the budget has time for it and a configuration was decided since none was left.
        End exploring if no kernel is left and no configuration is under test."""
        count = len(self.state.under_test)  # only this thread adds some
        if count and count == self._awaited_count:
            return
        is_chosen = self.state.work(self.choose_kernel)
        if is_chosen is not None:
            self._awaited_count = 0 if is_chosen else count
        if is_chosen is False and not count:
            gain = self.state.expected_gain
            more = f": other configurations are expected to save {gain:.1%} of a step" if gain else ""
            self.state.end(f"nothing is left to gain{more}")

    def choose_kernel(self) -> bool:
        """Choose the kernel whose next configuration may gain most, among those with no configuration under test.

        Return False if there is none, or if all kernels together can gain less than MIN_GAIN_SHARE.
        """
        for measured in self.state.kernels.values():
            if measured.failures >= MAX_FAILURES:
                measured.over = measured.over or f"{MAX_FAILURES} configurations in a row gained nothing"
        gain = self.state.expected_gain
        if not gain or gain < MIN_GAIN_SHARE:
            return False
        self.state.budget.share = exploring.MAX_COST_SHARE * min(1.0, gain / FULL_GAIN_SHARE)
        free = {k: m.gain for k, m in self.state.kernels.items() if not m.over and k not in self.state.under_test}
        self.chosen = max(free, key=free.__getitem__) if free else None
        return bool(free)
