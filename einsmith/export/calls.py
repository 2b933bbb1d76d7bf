"""Name the functions of a library and describe their arguments and results, for C, the manifest and the loader."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from einsmith.base.dtypes import DType, bf16
from einsmith.export import exported
from einsmith.export.exported import ExportSubject, Traced
from einsmith.ir.nodes import Leaf, Tensor

_TYPES = {
    "f64": "double",
    "f32": "float",
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "i64": "int64_t",
    "i32": "int32_t",
    "i16": "int16_t",
    "i8": "int8_t",
    "u8": "uint8_t",
    "bool": "uint8_t",
}
_TAKEN = frozenset(
    "model loss name value path threads weights bytes made code auto break case char const continue default do double "
    "else enum extern float for goto if inline int long register restrict return short signed sizeof static struct "
    "switch typedef union unsigned void volatile while class new delete this template namespace operator public "
    "private protected bool true false and or not xor try throw catch using virtual friend typename".split()
)
"""Names that arguments cannot have: keywords of C and C++, and the library's own arguments."""


@dataclass(frozen=True)
class ArrayArgument:
    """An array that a function reads or writes, C-contiguous."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def c_type(self) -> str:
        """The C type of the elements."""
        return _TYPES[self.dtype.name]

    @property
    def type_name(self) -> str:
        """NumPy's name of the element type, or "bfloat16"."""
        return "bfloat16" if self.dtype is bf16 else self.dtype.numpy.name

    @property
    def meaning(self) -> str:
        """Type, shape and encoding, as in the header's comments."""
        notes = {"f16": ", as raw bits", "bf16": ", as raw bits", "bool": ", each 0 or 1"}
        return f"{self.type_name}[{', '.join(map(str, self.shape))}]{notes.get(self.dtype.name, '')}"

    def describe(self) -> dict[str, Any]:
        """Return the argument's entry in the manifest."""
        return {"name": self.name, "type": self.type_name, "shape": list(self.shape)}


@dataclass(frozen=True)
class LibraryCall:
    """A function of the library.

    program: number of its graph; gather: number of the graph for batches before the last one of an update."""

    function: str
    role: str
    arguments: tuple[ArrayArgument, ...]
    results: tuple[ArrayArgument, ...]
    program: int
    gather: int

    @property
    def arrays(self) -> tuple[ArrayArgument, ...]:
        """Arguments and results."""
        return self.arguments + self.results

    def prototype(self, name: str) -> str:
        """Return the declaration in C, without the semicolon. name: that of the library."""
        arguments = [f"const {a.c_type} *{a.name}" for a in self.arguments]
        losses = self.role in (exported.TRAIN, exported.EVALUATE)
        results = ["double *loss"] if losses else [f"{a.c_type} *{a.name}" for a in self.results]
        return f"int {self.function}({', '.join([f'{name}_model *model', *arguments, *results])})"

    def describe(self) -> dict[str, Any]:
        """Return the function's entry in the manifest."""
        return {
            "function": self.function,
            "role": self.role,
            "arguments": [a.describe() for a in self.arguments],
            "results": [a.describe() for a in self.results],
        }


def calls(
    name: str, subject: ExportSubject, inputs: Sequence[Sequence[Leaf]], outputs: Sequence[Sequence[Tensor]]
) -> list[LibraryCall]:
    """Return the functions for all graphs of a subject.

    name: prefix of the functions' names; inputs, outputs: of each graph, the inputs that calls pass and the outputs."""
    library_calls = []
    places = {(t.role, t.variant): n for n, t in enumerate(subject.graphs)}
    endings = _endings(subject.graphs)
    for n, t in enumerate(subject.graphs):
        if t.role == exported.GATHER:
            continue
        taken = set(_TAKEN)
        arguments = tuple(
            ArrayArgument(_unused_identifier(called, taken), x.dtype, x.shape)
            for called, x in zip(t.arguments, inputs[n], strict=True)
        )
        results: tuple[ArrayArgument, ...] = ()
        if t.role in (exported.PREDICT, exported.CALL):
            base = "output" if t.role == exported.PREDICT else "result"
            many = len(outputs[n]) > 1
            results = tuple(
                ArrayArgument(_unused_identifier(f"{base}_{k}" if many else base, taken), x.dtype, x.shape)
                for k, x in enumerate(outputs[n])
            )
        gather = places.get((exported.GATHER, t.variant), n)
        library_calls.append(LibraryCall(f"{name}_{t.role}{endings[t.variant]}", t.role, arguments, results, n, gather))
    return library_calls


def _endings(graphs: Iterable[Traced]) -> list[str]:
    """Return the suffix of the functions' names by variant: the batch size where it is unique, else the number."""
    samples = {t.variant: t.samples for t in graphs if t.role in (exported.TRAIN, exported.CALL)}
    if len(samples) == 1:
        return [""]
    apart = len(set(samples.values())) == len(samples)
    return [f"_{samples[n] if apart else n}" for n in range(len(samples))]


def _unused_identifier(name: str, taken: set[str]) -> str:
    """Return a valid C identifier like `name` that is not in `taken`, and add it there."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    plain = plain if plain[:1].isalpha() else f"x{plain}"
    unused = next(n for n in (plain, *(f"{plain}_{k}" for k in range(2, len(taken) + 3))) if n not in taken)
    taken.add(unused)
    return unused
