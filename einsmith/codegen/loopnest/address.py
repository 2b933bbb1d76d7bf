"""Turn indices into addresses by the strides of a buffer; no other module does so.

An address is a sum of coefficient * atom, in elements from where the buffer begins. Where all atoms are axes, it is an
address form, as a linear guard is. Axes over which all forms have one stride act as one (`FusedAxes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from einsmith.base.dtypes import DType
from einsmith.codegen.ssa import SSAValue, elem_of
from einsmith.ir.analysis.linear import LinearForm, affine_of, linear
from einsmith.ir.nodes import Apply, Axis, Expr, Piece
from einsmith.schedule.kernel import Kernel, KernelBuffer

COMPARISONS = ("lt", "le", "eq", "ne")


@dataclass(frozen=True, eq=False)
class BufferMemory:
    """A buffer and the pointer `value` to its first element (None where code is only analysed)."""

    value: SSAValue | None
    buffer: KernelBuffer

    @property
    def pointer(self) -> SSAValue:
        """The pointer to the first element; code must be emitted, not only analysed."""
        assert self.value is not None
        return self.value

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.buffer.dtype

    @property
    def elem(self) -> str:
        """The name of the loop-nest type of the elements."""
        return elem_of(self.buffer.dtype)

    @property
    def offset_elem(self) -> str:
        """The integer type that holds every offset in the buffer; sums of offsets are exact modulo its range."""
        return "i32" if self.buffer.size < 2**31 else "i64"


def memories_of(kernel: Kernel, pointers: Sequence[SSAValue] | None = None) -> dict[int, BufferMemory]:
    """Return the memory of a kernel's buffers, by number, at these pointers."""
    return {n: BufferMemory(pointers[n] if pointers else None, x) for n, x in enumerate(kernel.buffers)}


def arguments_of(kernel: Kernel, memories: Mapping[int, BufferMemory]) -> dict[int, BufferMemory]:
    """Return the memory of the root's arguments, by slot; memories: memory of the kernel's buffers, by number."""
    return {slot: memories[ref[1]] for slot, ref in enumerate(kernel.stages[0].args)}


def address(index: Sequence[Expr | LinearForm], strides: Sequence[int]) -> LinearForm:
    """Return the address (elements) of an index into a buffer of these strides."""
    const, terms = 0, dict[Expr, int]()
    for e, stride in zip(reversed(index), reversed(strides), strict=True):
        form = e if isinstance(e, LinearForm) else linear(e)
        const += form.const * stride
        for atom, c in form.terms.items():
            terms[atom] = terms.get(atom, 0) + c * stride
    return LinearForm(const, {atom: c for atom, c in terms.items() if c} if 0 in terms.values() else terms)


def store_address(piece: Piece, buffer: KernelBuffer) -> LinearForm:
    """Return the address of a piece's result as a form of the piece's output axes."""
    places = [LinearForm(o, {Axis(d): s}) for d, (o, s) in enumerate(zip(piece.offset, piece.step, strict=True))]
    form = affine_of(address(places, buffer.strides))
    assert form is not None
    return form


def comparison_form(
    g: Expr, extents: Sequence[int] | None = None, fns: Sequence[str] = COMPARISONS
) -> LinearForm | None:
    """Return the form that an integer comparison compares with zero; None for other expressions or other atoms.

    extents: drop axes of one point. fns: comparison functions that count."""
    if not (isinstance(g, Apply) and g.fn in fns and g.args[0].dtype.is_int):
        return None
    return affine_of(linear(g.args[0]) - linear(g.args[1]), extents)


class FusedAxes(NamedTuple):
    """Axes (outer first) that act as one of `extent` points: every form has one stride over them."""

    axes: tuple[int, ...]
    extent: int

    @property
    def inner(self) -> int:
        """The innermost of the axes."""
        return self.axes[-1]


def fuse_axes(axes: Sequence[int], extents: Sequence[int], evenly: Callable[[int, FusedAxes], bool]) -> list[FusedAxes]:
    """Fuse axes (outer first) with the axes inside of them as far as `evenly` allows; axes of one point are dropped."""
    out: list[FusedAxes] = []
    for a in reversed([a for a in axes if extents[a] > 1]):
        if out and evenly(a, out[-1]):
            out[-1] = FusedAxes((a, *out[-1].axes), out[-1].extent * extents[a])
        else:
            out.append(FusedAxes((a,), extents[a]))
    return out[::-1]
