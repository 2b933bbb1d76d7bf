"""Kernels made of kernels: the parts run one after the other, and what passes between them lies in the workspace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from einsmith.kernels.genes import Space, genes
from einsmith.kernels.pattern import Chooser, Cost, Launch, Lowered, Pattern
from einsmith.loops.splice import moved
from einsmith.plan.kernel import Kernel
from einsmith.target.cost import HIDDEN, in_turn
from einsmith.target.facts import Target

TRIED = 4
"""Configurations of a part that are worth a measurement, where there are several parts."""


class PartConfig(NamedTuple):
    """A pattern's name and its configuration for one of the kernels."""

    pattern: str
    config: Any

    def __str__(self) -> str:
        return f"{self.pattern} {self.config}"


class CompositeConfig(NamedTuple):
    """way: by which of the pattern's ways the kernel is made of others; parts: what is chosen for each of these."""

    way: int
    parts: tuple[PartConfig, ...]

    def __str__(self) -> str:
        return ", then ".join(map(str, dict.fromkeys(self.parts)))


class Composite(Pattern):
    """A pattern that makes other kernels of one, each of which the chooser gives to whatever pattern suits it."""

    def __init__(self, chooser: Chooser):
        self.chooser = chooser

    @abstractmethod
    def ways(self, kernel: Kernel, target: Target) -> Sequence[Sequence[Kernel]]:
        """The kernels, in the order in which they run, one sequence for each way to make them. The first buffers of
        each are those of the whole, in whatever shape; those after them lie in the workspace."""

    def parts(self, kernel: Kernel, config: CompositeConfig, target: Target) -> list[tuple[Kernel, PartConfig]]:
        """The kernels of a configuration."""
        return list(zip(self.ways(kernel, target)[config.way], config.parts, strict=True))

    def best(self, kernel: Kernel, target: Target, limit: float = float("inf")) -> CompositeConfig | None:
        """What suits each part of the best way. The last parts, which are mostly the quicker to configure, are chosen
        first: what they leave of the limit is the others'."""
        best = None
        for way, kernels in enumerate(self.ways(kernel, target)):
            left, found = limit, list[Any]()
            for part in reversed(kernels):
                x = self.chooser.choose_below(part, target, (1 + HIDDEN) * left)
                if x is None:
                    break
                found.insert(0, x)
                left -= x.cost.seconds
            else:
                if (rank := in_turn([x.cost for x in found]).rank) >= limit:
                    continue
                best = CompositeConfig(way, tuple(PartConfig(x.pattern.name, x.config) for x in found))
                limit = rank
                if self.settled(kernel, best):
                    break
        return best

    def settled(self, kernel: Kernel, config: CompositeConfig) -> bool:
        """Whether no later way is worth a look."""
        return False

    def configs(self, kernel: Kernel, target: Target) -> list[CompositeConfig]:
        """The alternatives of every part, beside the best of the others."""
        out = []
        for way, kernels in enumerate(self.ways(kernel, target)):
            every = [self.chooser.choose(part, target).alternatives for part in kernels]
            parts = [[PartConfig(name, c) for name, c, _ in found] for found in every]
            best = [found[0] for found in parts]
            for n, found in enumerate(parts):
                some = found[:TRIED] if len(parts) > 1 else found
                out += [CompositeConfig(way, (*best[:n], x, *best[n + 1 :])) for x in some]
        return list(dict.fromkeys(out))

    def space(self, kernel: Kernel, target: Target) -> Space:
        """The genes of the parts, in whatever patterns `configs` has for them."""
        found = super().space(kernel, target)
        for kernels in self.ways(kernel, target):
            for n, part in enumerate(kernels):
                for name in found.get(f"parts.{n}.pattern", ()):
                    for gene, values in self.chooser.pattern_of(name).space(part, target).items():
                        own = f"parts.{n}.config.{gene}"
                        found[own] = tuple(dict.fromkeys((*found.get(own, ()), *values)))
        return found

    def legal(self, kernel: Kernel, config: CompositeConfig, target: Target) -> str:
        for part, c in self.parts(kernel, config, target):
            pattern = self.chooser.pattern_of(c.pattern)
            known = pattern.match(part) and genes(c.config).keys() <= pattern.space(part, target).keys()
            reason = pattern.legal(part, c.config, target) if known else "a part's genes are not its pattern's"
            if reason:
                return reason
        return ""

    def cost(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Cost:
        parts = self.parts(kernel, config, target)
        return in_turn([self.chooser.pattern_of(c.pattern).cost(k, c.config, target) for k, c in parts])

    def lowered(self, kernel: Kernel, config: CompositeConfig, target: Target) -> list[Lowered]:
        """Each of the parts by itself."""
        parts = self.parts(kernel, config, target)
        return [self.chooser.pattern_of(c.pattern).lower(k, c.config, target) for k, c in parts]

    def lower(self, kernel: Kernel, config: CompositeConfig, target: Target) -> Lowered:
        out = Staged(f"{self.name.replace(' ', '_')}_{kernel.digest.hex()[:8]}", len(kernel.buffers))
        places = [BufferPlace(n) for n in range(len(kernel.buffers))]
        parts = self.parts(kernel, config, target)
        for (part, _), lowered in zip(parts, self.lowered(kernel, config, target), strict=True):
            places += [out.room(b.nbytes) for b in part.buffers[len(places) :]]
            out.add(lowered, places)
        return out.lowered


class BufferPlace(NamedTuple):
    """Where a part finds a buffer: the whole's buffer `number`, from byte `offset` on."""

    number: int
    offset: int = 0


class Staged:
    """Collects the launches of parts, which run one after the other, for a kernel with `buffers` buffers."""

    def __init__(self, name: str, buffers: int):
        self.name = name
        self.buffers = buffers
        self.lowered = Lowered()

    def room(self, nbytes: int) -> BufferPlace:
        """A piece of the workspace that nothing else uses."""
        at = BufferPlace(self.buffers, self.lowered.workspace)
        self.lowered.workspace += -(-nbytes // 64) * 64
        return at

    def add(self, part: Lowered, places: Sequence[BufferPlace]) -> None:
        """The launches of a part whose buffers (but for its own workspace) are at `places`."""
        where = [*places, self.room(part.workspace)]
        for launch in part.launches:
            name = f"{self.name}_{len(self.lowered.launches)}"
            function = moved(launch.function, name, where, self.buffers + 1)
            self.lowered.launches.append(Launch(function, launch.tasks, launch.once))
