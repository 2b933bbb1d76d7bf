"""Runs what a kernel is lowered to, by the interpreter, as printed text and on a card, and compares it with the
evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.gpu.tiles.ir import TileFunction, TileParameter
from einsmith.gpu.tiles.lower import lower
from einsmith.gpu.tiles.pieces import Tiling
from einsmith.gpu.tiles.triton_text import triton_text
from einsmith.gpu.tiles.verify import verify
from einsmith.ir.interned import Node
from einsmith.kernels.pattern import Lowered
from einsmith.schedule.kernel import Kernel, KernelBuffer
from tests.kernels.runner import GAP, elements, read_buffers, reference
from tests.tiles import card, interp, stand_in
from tests.tiles.memory import Memory

SMALL = Tiling(m=8, n=16, k=16, split=1, precision="ieee")
"""So that small kernels have several programs, and blocks that end within a tile."""
SPLIT = Tiling(m=4, n=4, k=16, split=3, precision="tf32x3")
WATCHED = ("interpreter", "text")
"""Ways to run kernels that notice accesses which a card would leave to chance."""
WAYS = WATCHED if card.missing() else (*WATCHED, "card")


def backward(n: int) -> Iterable[int]:
    return reversed(range(n))


class Held:
    """The memory of a kernel: each buffer's bytes as they lie, with gaps between elements where its strides leave some,
    and the workspace. over: buffers that lie where another one does."""

    def __init__(
        self,
        buffers: Sequence[KernelBuffer],
        arrays: Sequence[np.ndarray],
        workspace: int,
        over: Mapping[int, int] = {},
    ):  # noqa: B006
        self.buffers, self.over = buffers, over
        self.raw = []
        for b, a in zip(buffers, arrays, strict=True):
            raw = np.full(b.nbytes, GAP, np.uint8)
            flat = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
            elements(raw, b)[...] = flat.reshape(*a.shape, b.dtype.itemsize)
            self.raw.append(raw)
        self.workspace = np.full(workspace, 0xFF, np.uint8)
        self._memories: dict[Any, Memory] = {}

    def find(self, p: TileParameter) -> Memory:
        if p.buffer is not None:
            n = self.over.get(p.buffer, p.buffer)
            key: Any = n
            raw, what = self.raw[n], f"buffer {n}"
        else:
            key = (p.offset, p.elem)
            raw, what = self.workspace[p.offset :], f"workspace from byte {p.offset} on"
            raw = raw[: p.size * dt.dtype_of(p.elem).itemsize]
        if key not in self._memories:
            self._memories[key] = Memory(raw, p.elem, what, p.buffer is not None)
        found = self._memories[key]
        assert found.elem == p.elem and found.size == p.size
        return found

    def array(self, n: int) -> np.ndarray:
        b = self.buffers[n]
        inside = elements(self.raw[self.over.get(n, n)], b)
        return np.ascontiguousarray(inside).reshape(-1).view(b.dtype.numpy).reshape(b.shape)

    def check_gaps(self) -> None:
        for raw, b in zip(self.raw, self.buffers, strict=True):
            rest = raw.copy()
            elements(rest, b)[...] = GAP
            assert (rest == GAP).all(), "written between the elements of a buffer"


def functions_of(lowered: Lowered) -> list[TileFunction]:
    """The functions of all launches, verified."""
    functions = [x.function for x in lowered.launches]
    for f, x in zip(functions, lowered.launches, strict=True):
        verify(f)
        assert f.programs == x.tasks
    return functions


def ran(
    lowered: Lowered,
    buffers: Sequence[KernelBuffer],
    arrays: Sequence[np.ndarray],
    way: str,
    order: Callable[[int], Iterable[int]] = range,
    over: Mapping[int, int] = {},
) -> list[np.ndarray]:  # noqa: B006
    """What is in the buffers afterwards."""
    functions = functions_of(lowered)
    held = Held(buffers, arrays, lowered.workspace, over)
    if way == "text":
        stand_in.run(triton_text(functions), functions, held.find, order)
    elif way == "card":
        card.run(functions, held.find)
    else:
        interp.run(functions, held.find, order)
    held.check_gaps()
    return [held.array(n) for n in range(len(buffers))]


def in_double(node: Any) -> Any:
    """A kernel with float64 in the place of float32."""
    if node is dt.f32:
        return dt.f64
    if isinstance(node, tuple):
        return tuple(in_double(x) for x in node)
    return type(node)(*(in_double(getattr(node, f)) for f in node.fields)) if isinstance(node, Node) else node


def data(kernel: Kernel, rng: np.random.Generator, limits: Mapping[int, int] = {}) -> list[np.ndarray]:  # noqa: B006
    """What the buffers hold before. limits: of whole numbers, which are positions in something."""
    out = []
    for n, b in enumerate(kernel.buffers):
        if b.dtype.is_bool:
            out.append(rng.integers(0, 2, b.shape).astype(bool))
        elif b.dtype.is_float:
            out.append(b.dtype.narrow(rng.integers(-6, 7, b.shape) / 2 + rng.integers(-3, 4, b.shape) / 64))
        else:
            low, high = (0, limits[n]) if n in limits else (-5, 6) if b.dtype.signed else (0, 11)
            out.append(rng.integers(low, high, b.shape).astype(b.dtype.numpy))
    return out


def tolerance(kernel: Kernel) -> float:
    """Relative to the largest result: of f64 by less than f32 holds, else by what sums of f32 leave."""
    floats = [b.dtype for b in kernel.buffers if b.dtype.is_float]
    return 1e-11 if all(d is dt.f64 for d in floats) else 3e-5 if all(d.bits >= 32 for d in floats) else 2e-2


def check(
    kernel: Kernel,
    rng: np.random.Generator,
    tiling: Tiling = SMALL,
    pattern: str | None = None,
    ways: Sequence[str] = WAYS,
    limits: Mapping[int, int] = {},
    arrays: Sequence[np.ndarray] | None = None,  # noqa: B006
    over: Mapping[int, int] = {},
    order: Callable[[int], Iterable[int]] = range,  # noqa: B006
    change: Callable[[Lowered], Lowered] = lambda x: x,
    relative: float | None = None,
) -> None:
    """Compares a kernel by both ways with the evaluator in float64; raises AssertionError. `change`: what becomes of
    what it is lowered to; relative: the tolerance, relative to each element alone."""
    base = list(arrays) if arrays is not None else data(kernel, rng, limits)
    want = reference(kernel, base)
    lowered = change(lower(kernel, tiling, pattern))
    start = poisoned(kernel, base, want)
    for way in ways:
        got = ran(lowered, kernel.buffers, start, way, order, over)
        for n, a in enumerate(got):
            if n in want:
                close(a, want[n], kernel.buffers[n].dtype, tolerance(kernel), relative, f"{way}: buffer {n}")
            elif n not in over.values():
                np.testing.assert_array_equal(a, base[n], err_msg=f"{way}: buffer {n}, which is not written")


def close(got: np.ndarray, want: np.ndarray, dtype: dt.DType, tol: float, relative: float | None, what: str) -> None:
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want.astype(dtype.numpy), err_msg=what)
        return
    want = dtype.rounded(want)
    if relative is not None:
        found = dtype.wide(got)
        zero = (want == 0) & (found == 0)
        np.testing.assert_array_equal(np.signbit(found)[zero], np.signbit(want)[zero], err_msg=f"{what}: signs of 0")
        np.testing.assert_allclose(dtype.wide(got), want, rtol=relative, atol=dtype.tiny, err_msg=what)
        return
    scale = np.max(np.abs(want[np.isfinite(want)]), initial=1.0)
    np.testing.assert_allclose(dtype.wide(got), want, rtol=tol, atol=tol * scale, err_msg=what)


def poisoned(kernel: Kernel, base: Sequence[np.ndarray], want: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """The arrays; those that are only written hold rubbish."""
    known = read_buffers(kernel)
    out = [a.copy() for a in base]
    for n in want:
        if n not in known:
            out[n].reshape(-1).view(np.uint8)[:] = 255 if out[n].dtype != bool else 1
    return out
