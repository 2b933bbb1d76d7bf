"""Compose kernels of other kernels: the parts run one after the other and pass data through the workspace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from einsmith.codegen.loopnest.splice import rebind
from einsmith.cost.facts import Target
from einsmith.cost.roofline import HIDDEN, in_turn
from einsmith.kernels.composite.limited_parts import beyond_of_parts, limit_parts
from einsmith.kernels.genes import Space, add_values, genes
from einsmith.kernels.pattern import Chooser, Cost, Launch, Lowered, Pattern
from einsmith.schedule.kernel import Kernel, MemberKernel

MAX_PART_CONFIGS = 4
"""Most configurations of a part that are worth a measurement, where a kernel has several parts."""


class PartConfig(NamedTuple):
    """The name of a pattern, and its configuration for one of the kernels."""

    pattern: str
    config: Any

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


class CompositeConfig(NamedTuple):
    """The configuration of a composite: the number of the decomposition (`way`), and the choice for each part."""

    way: int
    parts: tuple[PartConfig, ...]

    def __str__(self) -> str:
        return ", then ".join(map(str, dict.fromkeys(self.parts)))


class Composite(Pattern):
    """A pattern that decomposes a kernel into others, for each of which the chooser picks a pattern."""

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    @abstractmethod
    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        """Return the decompositions of a kernel, each a sequence of kernels in the order in which they run.

        The first buffers of each part are those of the whole kernel, in any shape; later buffers lie in the workspace.
        """

    def limited_ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        """Return the decompositions of a kernel, with limits of the parts where the kernel has some."""
        return [limit_parts(kernel, tuple(way)) for way in self.ways(kernel, target)]

    def parts(self, kernel: Kernel, config: CompositeConfig, target: Target) -> list[tuple[Kernel, PartConfig]]:
        """Return the kernels of a configuration, each with its choice."""
        return list(zip(self.limited_ways(kernel, target)[config.way], config.parts, strict=True))

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> CompositeConfig | None:
        """Return the best configuration below `limit`, over all decompositions; None where there is none.

        Parts are chosen from the last one on, which is mostly the quickest to configure; the remainder of the limit
        bounds the earlier parts.
        """
        best = None
        for way, kernels in enumerate(self.limited_ways(kernel, target)):
            remaining, chosen = limit, list[Any]()
            for part in reversed(kernels):
                choice = self.chooser.choose_below(part, target, (1 + HIDDEN) * remaining)
                if choice is None:
                    break
                chosen.insert(0, choice)
                remaining -= choice.cost.seconds
            else:
                if (rank := in_turn([x.cost for x in chosen]).rank) >= limit:
                    continue
                best = CompositeConfig(way, tuple(PartConfig(x.pattern.name, x.config) for x in chosen))
                limit = rank
                if self.is_settled(kernel, best):
                    break
        return best

    def is_settled(self, kernel: Kernel, config: CompositeConfig) -> bool:
        """Return whether later decompositions need not be considered."""
        return False

    def configs(self, kernel: Kernel, target: Target) -> list[CompositeConfig]:
        """Return the alternatives of every part, each combined with the best choices for the other parts."""
        out = []
        for way, kernels in enumerate(self.limited_ways(kernel, target)):
            choices = [self.chooser.choose_below(part, target, inf) for part in kernels]
            if None in choices:
                continue
            alternatives = [choice.alternatives for choice in choices if choice is not None]
            parts = [[PartConfig(name, c) for name, c, _ in part_configs] for part_configs in alternatives]
            best = [part_configs[0] for part_configs in parts]
            for n, part_configs in enumerate(parts):
                tried = part_configs[:MAX_PART_CONFIGS] if len(parts) > 1 else part_configs
                out += [CompositeConfig(way, (*best[:n], x, *best[n + 1 :])) for x in tried]
        return list(dict.fromkeys(out))

    def space(self, kernel: Kernel, target: Target) -> Space:
        """Return the genes of the parts, for all patterns that `configs` has for them."""
        space = super().space(kernel, target)
        for kernels in self.limited_ways(kernel, target):
            for n, part in enumerate(kernels):
                for name in space.get(f"parts.{n}.pattern", ()):
                    add_values(space, self.chooser.pattern_of(name).space(part, target), f"parts.{n}.config.")
        return space

    def legal(self, kernel: Kernel, config: CompositeConfig, target: Target) -> str:
        for part, c in self.parts(kernel, config, target):
            pattern = self.chooser.pattern_of(c.pattern)
            has_known_genes = pattern.match(part) and genes(c.config).keys() <= pattern.space(part, target).keys()
            reason = (
                pattern.legal(part, c.config, target) if has_known_genes else "a part's genes are not its pattern's"
            )
            if reason:
                return reason
        return ""

    def cost(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Cost:
        parts = self.parts(kernel, config, target)
        return in_turn([self.chooser.pattern_of(c.pattern).cost(k, c.config, target) for k, c in parts])

    def lower_parts(self, kernel: Kernel, config: CompositeConfig, target: Target) -> list[Lowered]:
        """Return each part, lowered by its own pattern."""
        parts = self.parts(kernel, config, target)
        return [self.chooser.pattern_of(c.pattern).lower(k, c.config, target) for k, c in parts]

    def lower(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Lowered:
        out = LaunchSequence(f"{self.name.replace(' ', '_')}_{kernel.digest.hex()[:8]}", len(kernel.buffers))
        places = [BufferPlace(n) for n in range(len(kernel.buffers))]
        kernels = [part for part, _ in self.parts(kernel, config, target)]
        lowered_parts = self.lower_parts(kernel, config, target)
        for part, lowered in zip(kernels, lowered_parts, strict=True):
            places += [out.reserve(b.nbytes) for b in part.buffers[len(places) :]]
            out.add(lowered, places)
        out.lowered.beyond = beyond_of_parts(kernel, kernels, [x.beyond for x in lowered_parts])
        return out.lowered


class InTurn(Pattern):
    """The pattern of kernels whose members run one after the other on one thread, within one launch.

    It has a single configuration: the chooser picks pattern and configuration of each member for one core."""

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    def configs(self, kernel: MemberKernel, target: Target) -> Sequence[str]:
        return ["in turn"]

    def cost_in_turn(self, kernel: MemberKernel, target: Target) -> Cost:
        """Return the cost of the members on one core, without launches."""
        return in_turn([x.cost._replace(launch=0.0) for x in self._choices(kernel, target)])

    def lower_members(self, kernel: MemberKernel, target: Target) -> list[Lowered]:
        """Return each member, lowered by its own pattern."""
        return [c.pattern.lower(c.kernel, c.config, c.target) for c in self._choices(kernel, target)]

    def _choices(self, kernel: MemberKernel, target: Target) -> list[Any]:
        return [self.chooser.choose(m.kernel, replace(target, cores=1)) for m in kernel.members]


class BufferPlace(NamedTuple):
    """The place of a part's buffer: the whole kernel's buffer `number`, from byte `offset` on."""

    number: int
    offset: int = 0


class LaunchSequence:
    """The launches of parts that run one after the other, for a kernel with `buffers` buffers."""

    def __init__(self, name: str, buffers: int):
        self.name = name
        self.buffers = buffers
        self.lowered = Lowered()

    def reserve(self, nbytes: int) -> BufferPlace:
        """Return a piece of the workspace, of `nbytes` bytes, that nothing else uses."""
        at = BufferPlace(self.buffers, self.lowered.workspace)
        self.lowered.workspace += -(-nbytes // 64) * 64
        return at

    def add(self, part: Lowered, places: Sequence[BufferPlace]) -> None:
        """Append the launches of a part whose buffers, except its own workspace, are at `places`, with its sums."""
        workspace = self.reserve(part.workspace)
        places_with_workspace = [*places, workspace]
        if part.sums is not None:
            self.lowered.sums = part.sums.moved(workspace.offset)
        for launch in part.launches:
            name = f"{self.name}_{len(self.lowered.launches)}"
            function = rebind(launch.function, name, places_with_workspace, self.buffers + 1)
            self.lowered.launches.append(Launch(function, launch.tasks, launch.loop_invariant))
