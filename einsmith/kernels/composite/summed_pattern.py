"""Lower a kernel together with the sums of its results, which further launches finish."""

from __future__ import annotations

from math import inf
from typing import Any

from einsmith.cost.facts import Target
from einsmith.cost.roofline import in_turn, launch_overhead
from einsmith.kernels.composite.parts import BufferPlace, LaunchSequence, PartConfig
from einsmith.kernels.genes import Space, add_values
from einsmith.kernels.pattern import Chooser, Cost, Lowered, Pattern
from einsmith.schedule.kernel import Kernel, Rows
from einsmith.schedule.summed import Source, SumPart, summed_form

APART = PartConfig("apart", None)
"""The configuration in which the kernels run one after the other, as each is chosen alone."""


class Summed(Pattern):
    """The pattern of a `Rows` whose main kernel takes the sums of the others (`schedule.summed`).

    Its configuration is the pattern and configuration of the main kernel, or `APART` if no pattern takes the sums
    (whether they are better taken is decided when kernels are joined, `schedule.sum_calls`). Each task leaves its part
    of every sum in the workspace; the chooser's kernels add these and compute what follows.
    """

    name = "summed"

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    def match(self, kernel: Any) -> bool:
        return isinstance(kernel, Rows) and kernel.takes_sums

    def best(self, kernel: Rows, target: Target, limit: float = inf) -> PartConfig | None:
        main = _main(kernel)
        choice = None if main is None else self.chooser.choose_below(main, target, inf)
        best = APART if choice is None else PartConfig(choice.pattern.name, choice.config)
        return best if self.cost(kernel, best, target).rank < limit else None

    def configs(self, kernel: Rows, target: Target) -> list[PartConfig]:
        main = _main(kernel)
        choice = None if main is None else self.chooser.choose_below(main, target, inf)
        alternatives = [] if choice is None else choice.alternatives
        return [*(PartConfig(name, config) for name, config, _ in alternatives), APART]

    def space(self, kernel: Rows, target: Target) -> Space:
        """Return the genes of the main kernel, for all patterns that `configs` has for it."""
        space, main = super().space(kernel, target), _main(kernel)
        for name in space.get("pattern", ()) if main is not None else ():
            if name != APART.pattern:
                add_values(space, self.chooser.pattern_of(name).space(main, target), "config.")
        return space

    def legal(self, kernel: Rows, config: PartConfig, target: Target) -> str:
        main = _main(kernel)
        if config.pattern == APART.pattern:
            return "" if config == APART else "kernels apart have no configuration"
        pattern = self.chooser.pattern_of(config.pattern)
        if main is None or not pattern.match(main) or not pattern.takes_sums(main, target):
            return f"the pattern {config.pattern} does not take these sums"
        return pattern.legal(main, config.config, target)

    def cost(self, kernel: Rows, config: PartConfig, target: Target) -> Cost:
        """Return the cost of the main kernel and of the launches that add the parts of its sums."""
        if config == APART:
            return in_turn([self.chooser.choose(m.kernel, target).cost for m in kernel.members])
        main = self.chooser.pattern_of(config.pattern).cost(_main(kernel), config.config, target)
        return in_turn([main, *(Cost(0.0, 0.0, 0.0, launch_overhead(1, target)) for _ in kernel.members[1:])])

    def lower(self, kernel: Rows, config: PartConfig, target: Target) -> Lowered:
        form, count = summed_form(kernel), len(kernel.buffers)
        out = LaunchSequence(f"summed_{kernel.digest.hex()[:8]}", count)
        places = [BufferPlace(n) for n in range(count)] + [out.reserve(b.nbytes) for b in kernel.local]
        if config == APART or form is None:
            for m in kernel.members:
                out.add(self._lower(m.kernel, target), [places[n] for n in m.places])
            return out.lowered
        main = self.chooser.pattern_of(config.pattern).lower(form.main.kernel, config.config, target)
        out.add(main, [places[x] for x in form.main.sources if not isinstance(x, SumPart)])
        sums = out.lowered.sums
        assert sums is not None

        def place_of(source: Source) -> BufferPlace:
            if isinstance(source, SumPart):
                return BufferPlace(count, sums.offsets[source.number][source.what])
            return places[source]

        for finish in form.finishes:
            part = finish.build(form.main.kernel.sums, sums.parts)
            out.add(self._lower(part.kernel, target), [place_of(x) for x in part.sources])
        return out.lowered

    def _lower(self, kernel: Kernel, target: Target) -> Lowered:
        choice = self.chooser.choose(kernel, target)
        return choice.pattern.lower(kernel, choice.config, target)


def _main(kernel: Rows) -> Kernel | None:
    """Return the main kernel with its sums; None if it cannot take them."""
    form = summed_form(kernel)
    return None if form is None else form.main.kernel
