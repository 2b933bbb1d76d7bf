"""Find the dimensions of inputs that a formula copies, whatever their extents are: `find_copied_dimensions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from einsmith.lang.infer import ExtentInference
from einsmith.lang.known_extents import Key
from einsmith.lang.resolve import FormulaProgram
from einsmith.lang.syntax import Ast, Name, Number, ParsedRead, ShapeOf, SizeOf, walk
from einsmith.lang.unparse import expression


@dataclass(frozen=True)
class Copied:
    """The dimensions that a formula copies. `sources`: (tensor, dimension) -> the dimension of an input that it copies;
    `why`: (input, dimension) -> the part of the formula that needs its extent, for all other dimensions of inputs."""

    sources: dict[tuple[str, int], tuple[str, int]]
    why: dict[tuple[str, int], str]


def find_copied_dimensions(program: FormulaProgram, shapes: Mapping[str, Sequence[int]]) -> Copied:
    """Return the dimensions of inputs and defined tensors that are copies of dimensions of inputs.

    A copied dimension is indexed by plain axes only, and nothing else of the formula's shapes depends on its extent, so
    the formula takes every extent there. All dimensions of inputs with one source must have one extent; reads under
    guards, as in where(t < n[b], x[b,t], 0), allow other extents too, but fix them. shapes: of the inputs; only their
    ranks and names matter.
    """
    return _CopiedDimensions(ExtentInference(program, shapes, {})).find()


class _CopiedDimensions:
    """The search for copied dimensions in the equal extents of a program."""

    def __init__(self, inference: ExtentInference):
        self.inference, self.program, self.known = inference, inference.program, inference.known

    def find(self) -> Copied:
        """Return the copied dimensions."""
        self.inference.bind()
        reads = [(k, s) for k, line in enumerate(self.program.lines) for s in line.reads]
        # Dimensions of equal extents: an axis has that extent, whatever the guards are.
        for k, site, d, i in self.inference.read_indices():
            if isinstance(i, Name) and self.inference.is_plain(k, i):
                self.known.union(("axis", k, i.id), ("dim", site.node.name, d), i.at)
        used: dict[Key, str] = {}

        def use(keys: Iterable[Key], why: str) -> None:
            for key in keys:
                used.setdefault(self.known.find(key), why)

        for k, line in enumerate(self.program.lines):
            s = line.statement
            for d, i in enumerate(s.index):
                if not self.inference.is_plain(k, i):
                    left = f"{s.name}[{', '.join(map(expression, s.index))}]"
                    use([("dim", s.name, d), *self._find_sizes(k, i)], f"{left} on the left side")
        for k, site in reads:
            uneven = [i for i in site.node.index if not self.inference.is_plain(k, i)]
            for d, i in enumerate(site.node.index):
                if i in uneven:
                    use([("dim", site.node.name, d), *self._find_sizes(k, i)], expression(site.node))
            for c, _ in site.guards if uneven else ():  # they keep the index in bounds
                sizes = [n for n in walk(c) if isinstance(n, (ShapeOf, SizeOf))]
                use([key for n in sizes for key in self._find_sizes(k, n)], expression(c))
        for name, extent in self.program.extents.items():
            why = f"extents={{{name!r}: {extent if isinstance(extent, int) else expression(extent)}}}"
            tensor, _, rest = name.partition(".shape[")
            if rest:
                use([("dim", tensor, int(rest.rstrip("]")))], why)
            for k in range(len(self.program.lines)):
                use([("axis", k, name), *(() if isinstance(extent, int) else self._find_sizes(k, extent))], why)
        sources: dict[Key, tuple[str, int]] = {}
        inputs = [(name, d) for name in self.program.inputs for d in range(self.inference.ranks.get(name, 0))]
        for at in inputs:
            sources.setdefault(self.known.find(("dim", *at)), at)
        dims = [(name, d) for name, rank in self.inference.ranks.items() for d in range(rank)]
        roots = {at: self.known.find(("dim", *at)) for at in dims}
        copied = {at: sources[root] for at, root in roots.items() if root in sources and root not in used}
        return Copied(copied, {at: used[roots[at]] for at in inputs if at not in copied})

    def _find_sizes(self, line: int, e: Ast) -> set[Key]:
        """Return the extents on which an index or an extent depends, apart from those of tensors read in it."""
        sizes: set[Key] = set()
        stack = [e]
        while stack:
            node = stack.pop()
            if isinstance(node, (Name, SizeOf)):
                sizes.add(self.known.find(("axis", line, node.id if isinstance(node, Name) else node.axis)))
            if isinstance(node, ShapeOf):
                sizes |= {self.known.find(("dim", node.name, d)) for d in self._find_dimensions(node)}
            elif not isinstance(node, ParsedRead):
                stack += node.args
        return sizes

    def _find_dimensions(self, node: ShapeOf) -> Iterable[int]:
        """Return the dimension of `name.shape[d]`, every one of the tensor where d is not a number."""
        rank = self.inference.ranks.get(node.name, 0)
        d = node.dim.value if isinstance(node.dim, Number) else None
        return (int(d) % rank,) if isinstance(d, int) and -rank <= d < rank else range(rank)
