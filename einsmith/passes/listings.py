"""Report the stages of compilation.

A plan summarises what the passes changed; EINSMITH_DEBUG=6 prints every stage, EINSMITH_DUMP writes all stages to
files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from einsmith.base import environment, files, messages
from einsmith.base.errors import KnobError
from einsmith.ir.nodes import Graph, Item, Leaf, postorder
from einsmith.ir.printer import show
from einsmith.ir.verify import verify_graph
from einsmith.passes import pipeline


class Listing(Protocol):
    """Receiver of the stages of a program's compilation."""

    def graph(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        """Receive the graph after a pass (`PassContext.observe`)."""

    def text(self, name: str, body: str) -> None:
        """Receive a stage after the passes: the plan, the arena, the program."""


class Changes(Listing):
    """The passes that changed the graph, or the graph of a loop's step. `tensors`: by how many tensors each grew or
    shrank it."""

    def __init__(self) -> None:
        self.tensors: dict[str, int] = {}

    def graph(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        if after is not before:
            self.tensors[name] = self.tensors.get(name, 0) + _count_tensors(after) - _count_tensors(before)

    def text(self, name: str, body: str) -> None:
        pass

    def __str__(self) -> str:
        return ", ".join(f"{name} {more:+d} tensors" if more else name for name, more in self.tensors.items())


def _count_tensors(graph: Graph) -> int:
    return sum(not isinstance(n, (Leaf, Item)) for n in postorder(graph.roots))


class PrintedListing(Listing):
    """A listing that prints to standard error and verifies every graph."""

    def graph(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        verify_graph(after)
        messages.say(f"--- {name}: {seconds * 1e3:.1f} ms\n{show(after)}")

    def text(self, name: str, body: str) -> None:
        messages.say(f"--- {name}\n{body}")


class FileListing(Listing):
    """A listing that writes files into a new folder, the next `program-0000` in `parent`. `initial`: the graph before
    the first pass. Raises KnobError if the files cannot be written.

        00-given.txt, 01-simplify.txt, ...           the graph after each pass
        17-lower-loops-steps-0/01-simplify.txt, ...  the graph of a loop's step, whose passes run meanwhile
        plan.txt, arena.txt, program.txt             kernels in order; positions in memory; the steps that are run
        graph.txt                                    the graph after all passes, as `es.load_graph` reads it
    """

    def __init__(self, parent: Path, initial: Graph):
        self.parent = parent
        self.folder = self._create_folder()
        self._levels = [(self.folder, 0)]  # per nested run of passes: folder, graphs written
        self._write(self.folder / "00-given.txt", show(initial))

    def _create_folder(self) -> Path:
        try:
            self.parent.mkdir(parents=True, exist_ok=True)
            n = len(list(self.parent.glob("program-*")))
            while True:
                try:
                    folder = self.parent / f"program-{n:04d}"
                    folder.mkdir()
                    return folder
                except FileExistsError:  # another process or thread has it
                    n += 1
        except OSError as e:
            raise self._knob_error(e) from e

    def graph(self, name: str, before: Graph, after: Graph, seconds: float) -> None:
        folder, done = self._levels[-1]
        if name != pipeline.PASSES[done].name:  # the first pass over the graph of a step
            outer = f"{done + 1:02d}-{_file_name(pipeline.PASSES[done].name)}-steps"
            folder = folder / f"{outer}-{len(list(folder.glob(f'{outer}-*')))}"
            done = 0
            self._levels.append((folder, done))
        head = f"# after {name}: {seconds * 1e3:.1f} ms{'' if after is not before else ', no change'}\n"
        self._write(folder / f"{done + 1:02d}-{_file_name(name)}.txt", head + show(after))
        self._levels[-1] = folder, done + 1
        if done + 1 == len(pipeline.PASSES):
            self._levels.pop()

    def text(self, name: str, body: str) -> None:
        self._write(self.folder / f"{_file_name(name)}.txt", body)

    def _write(self, file: Path, text: str) -> None:
        try:
            file.parent.mkdir(exist_ok=True)
            files.write(file, text + "\n")
        except OSError as e:
            raise self._knob_error(e) from e

    def _knob_error(self, e: OSError) -> KnobError:
        return KnobError(
            f"the environment variable {environment.DUMP.name} is {str(self.parent)!r}, where {e.filename or 'a file'} "
            f"cannot be written: {e.strerror or e}; set it to a folder that can be written, or unset it"
        )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name)


def listings(graph: Graph) -> list[Listing]:
    """Return the listings that the environment asks for, for a program made from a graph. Raises KnobError if
    EINSMITH_DUMP cannot be written."""
    folder = environment.DUMP.get()
    printed: list[Listing] = [PrintedListing()] if environment.debug() >= 6 else []
    return [*printed, FileListing(folder, graph)] if folder is not None else printed
