"""Runs what a pattern lowered, as machine code or on the interpreter of nests, and compares it with the evaluator."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from einsmith.base.dtypes import dtype_of, u8
from einsmith.codegen.cache.native import compile_functions, host_target
from einsmith.codegen.loopnest.nest_verify import verify
from einsmith.cost.facts import Target
from einsmith.ir.analysis.pointwise import is_identity
from einsmith.ir.nodes import Read, Reduce, postorder
from einsmith.ir.template_evaluator import evaluate_template
from einsmith.kernels.contraction.contraction_pattern import CONTRACTION
from einsmith.kernels.pattern import Lowered
from einsmith.schedule.kernel import Kernel, KernelBuffer, Rows, Stage
from tests import nest_interp

NARROW = Target(vector_bytes=16, cores=2)
WIDE = Target(vector_bytes=64, cores=2)
_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def host(cores: int = 2) -> Target:
    return replace(host_target(), cores=cores)


# ------------------------------------------------------------------------------------------------------------ arrays


def random_array(rng: np.random.Generator, buffer: KernelBuffer) -> np.ndarray:
    if buffer.dtype.is_float:
        return buffer.dtype.narrow(rng.standard_normal(buffer.shape))
    if buffer.dtype.is_bool:
        return rng.integers(0, 2, buffer.shape).astype(bool)
    return rng.integers(-5, 6, buffer.shape).astype(buffer.dtype.numpy)


def fresh(kernel: Kernel, seed: int) -> list[np.ndarray]:
    """Small integers, so that every order of summation gives the same floats."""
    rng = np.random.default_rng(seed)
    return [b.dtype.narrow(rng.integers(0 if b.dtype is u8 else -3, 4, b.shape)) for b in kernel.buffers]


def reference(kernel: Kernel, arrays: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """What each written buffer must hold, by the evaluator."""
    if isinstance(kernel, Rows):
        return _reference_of_rows(kernel, arrays)
    results: list[tuple[np.ndarray, ...]] = []
    out = {}
    for stage in kernel.stages:
        args = [arrays[w[0]] if kind == "buffer" else results[w[0]][w[1]] for kind, *w in stage.args]
        results.append(evaluate_template(stage.template, args))
        for member, buffer in enumerate(stage.outputs):
            if buffer is not None:
                out[buffer] = results[-1][member]
    return out


def _reference_of_rows(kernel: Rows, arrays: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    held = [*arrays, *(np.zeros(b.shape, b.dtype.numpy) for b in kernel.local)]
    out = {}
    for m in kernel.members:
        args = [held[place].reshape(b.shape) for place, b in zip(m.places, m.kernel.buffers, strict=True)]
        for n, x in reference(m.kernel, args).items():
            place = m.places[n]
            held[place] = x
            if place < len(arrays):
                out[place] = x.reshape(arrays[place].shape)
    return out


def read_buffers(kernel: Kernel) -> set[int]:
    """The buffers that a kernel reads before it writes them."""
    if not isinstance(kernel, Rows):
        return {where[0] for stage in kernel.stages for kind, *where in stage.args if kind == "buffer"}
    seen: set[int] = set()
    written: set[int] = set()
    for m in kernel.members:
        seen |= {m.places[n] for n in read_buffers(m.kernel)} - written
        written |= {m.places[n] for s in m.kernel.stages for n in s.outputs if n is not None}
    return seen


# --------------------------------------------------------------------------------------------------------------- run


GAP = 0xF5
"""What bytes between the elements of a buffer are before a kernel and after it; as numbers, large ones."""


def elements(memory: np.ndarray, buffer: KernelBuffer) -> np.ndarray:
    """The elements of a buffer in the bytes that it spans, each as so many bytes: [*shape, bytes]."""
    item = buffer.dtype.itemsize
    return np.lib.stride_tricks.as_strided(memory, (*buffer.shape, item), (*(s * item for s in buffer.strides), 1))


def run_native(
    lowered: Lowered,
    arrays: Sequence[np.ndarray],
    target: Target,
    backward: bool = False,
    over: Mapping[int, int] | None = None,
    buffers: Sequence[KernelBuffer] = (),
    fill: int = 255,
) -> None:
    """All tasks of all launches on arrays that are changed in place. Scratch begins as bytes `fill`: NaN. What lies
    behind each must not be read or written; before each, if `backward`. `over`: buffers that are the memory of another
    one; `buffers`: how the arrays lie in memory, row-major if not told; what is between elements must not be written.
    """
    addresses = compile_functions([x.function for x in lowered.launches], target)
    buffers = buffers or [KernelBuffer(dtype_of(a), a.shape) for a in arrays]
    held = [Guarded(x.nbytes, backward, x.non_temporal) for x in buffers]
    for n, of in (over or {}).items():
        held[n] = held[of]
    for n, (h, a, x) in enumerate(zip(held, arrays, buffers, strict=True)):
        if not over or n not in over:
            h.bytes[:] = GAP
            elements(h.bytes, x)[...] = _bytes(a)
    work = Guarded(lowered.workspace, backward)
    pointers = np.array([h.bytes.ctypes.data for h in (*held, work)], np.uint64)
    for x in lowered.launches:
        scratch = Guarded(x.function.scratch_bytes, backward)
        call = _SIGNATURE(addresses[x.function.name])
        for task in reversed(range(x.tasks)) if backward else range(x.tasks):
            scratch.bytes[:] = fill
            call(pointers.ctypes.data, scratch.bytes.ctypes.data, task)
        scratch.check(f"scratch of {x.function.name}")
    work.check("workspace")
    for n, (h, a, x) in enumerate(zip(held, arrays, buffers, strict=True)):
        h.check(f"buffer {n}")
        _bytes(a)[...] = elements(h.bytes, x)
    for n, (h, x) in enumerate(zip(held, buffers, strict=True)):
        elements(h.bytes, x)[...] = GAP
        assert (h.bytes == GAP).all(), f"written between the elements of buffer {n}"


def _bytes(a: np.ndarray) -> np.ndarray:
    """The bytes of an array's elements, in memory that is the array's: [*shape, bytes]."""
    assert a.flags.c_contiguous
    return a.reshape(-1).view(np.uint8).reshape(*a.shape, a.itemsize)


class Guarded:
    """Bytes beside a page that cannot be touched: the one after them, or the one before. What else is in their own
    pages must not be written. They begin where a cache line does, if `on_line`."""

    def __init__(self, size: int, before: bool = False, on_line: bool = True):
        page = mmap.PAGESIZE
        inner = max(1, -(-size // page)) * page
        self.memory = mmap.mmap(-1, inner + 2 * page)
        raw = np.frombuffer(self.memory, np.uint8)
        for at in (0, inner + page):
            if _protect(raw.ctypes.data + at, page, 0):  # nothing is allowed
                raise OSError(ctypes.get_errno(), "mprotect")
        raw = raw[page : inner + page]
        raw[:] = 255
        at = 0 if before else inner - (-(-size // 64) * 64 if on_line else size)
        self.bytes = raw[at : at + size]
        self.sides = raw[:at], raw[at + size :]

    def check(self, what: str) -> None:
        assert all((side == 255).all() for side in self.sides), f"written beside the {what}"


class Sample:
    """Every nth of the configurations that `check` is handed, one later in each n, so that kernels of as many
    configurations meet different ones."""

    def __init__(self, nth: int = 1):
        self.nth = nth
        self.count = 0

    def includes_next(self) -> bool:
        n, self.count = self.count, self.count + 1
        return (n + n // self.nth) % self.nth == 0


SAMPLE = Sample()
"""What the running test takes; see `sampled`."""


def sampled(nth: int) -> pytest.MarkDecorator:
    """Run every nth of all the configurations that a test hands to `check`; in slow tests, each."""
    return pytest.mark.parametrize(
        "sample", [nth, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every"], indirect=True
    )


def check(
    pattern: Any,
    kernel: Kernel,
    rng: np.random.Generator | int = 0,
    targets: Sequence[Target] = (),
    inputs: Sequence[np.ndarray | None] = (),
    tolerance: float = 2e-5,
    configs: Sequence[Any] = (),
    native: bool = False,
) -> int:
    """Runs every configuration (default: those that the pattern proposes), or a sample of them where the test is
    `sampled`, tasks in both orders; returns how many there are.

    Tolerance 0: the results are the same floats. Integers must agree exactly in any case. Arrays are standard normal
    numbers of a generator, or small integers for a seed; `inputs` come before them.
    """
    assert pattern.match(kernel)
    base = fresh(kernel, rng) if isinstance(rng, int) else [random_array(rng, b) for b in kernel.buffers]
    for i, a in enumerate(inputs):
        if a is not None:
            base[i] = np.ascontiguousarray(a)
    want: dict[int, np.ndarray] = {}
    count = 0
    for target in targets or ([host()] if native else [NARROW, WIDE]):
        for config in configs or pattern.configs(kernel, target):
            count += 1
            if not SAMPLE.includes_next():
                continue
            want = want or reference(kernel, base)
            assert pattern.cost(kernel, config, target).seconds > 0
            lowered = pattern.lower(kernel, config, target)
            compare(
                lowered,
                kernel,
                base,
                want,
                f"{pattern.name} {config}",
                target if native else None,
                tolerance,
                count % 2 == 0,
            )
    assert count
    return count


def compare(
    lowered: Lowered,
    kernel: Kernel,
    base: Sequence[np.ndarray],
    want: dict[int, np.ndarray],
    what: str,
    target: Target | None,
    tolerance: float = 2e-5,
    backward: bool = False,
    over: Mapping[int, int] | None = None,
) -> None:
    """Runs it (on the interpreter of nests where no target is told), and looks at every buffer; of results and what
    they are stored over (see `run_native`), at the results."""
    for launch in lowered.launches:
        verify(launch.function)
    arrays = poisoned(kernel, base, want)
    if target is None:
        assert not over
        nest_interp.run(lowered, kernel, arrays, reverse=backward)
    else:
        # NaN may be repaired where a guard makes the term zero; a number that is read by mistake stays.
        run_native(lowered, arrays, target, backward, over, kernel.buffers, 0x4B if backward else 255)
    agree(arrays, base, {**want, **{of: want[n] for n, of in (over or {}).items()}}, what, tolerance)


def replaceable(kernel: Kernel) -> dict[int, int]:
    """Results, each with a buffer that it may be stored over: one that is read only at the element being computed,
    and not by a reduction; or within a row, by members before the one that stores it."""
    out: dict[int, int] = {}
    if not isinstance(kernel, Rows) and kernel.root.is_scatter:
        return out
    may = _in_row if isinstance(kernel, Rows) else _at_own_place
    stages = [(m.places, x) for m in kernel.members for x in m.kernel.stages] if isinstance(kernel, Rows) else [
        (range(len(kernel.buffers)), x) for x in kernel.stages
    ]  # fmt: skip
    written = {places[n] for places, x in stages for n in x.outputs if n is not None}
    for n in sorted(n for n in written if n < len(kernel.buffers)):
        for of in sorted(read_buffers(kernel) - set(out.values()) - written):
            if of < len(kernel.buffers) and _alike(kernel.buffers[of], kernel.buffers[n]) and may(kernel, n, of):
                out[n] = of
                break
    return out


def _alike(a: KernelBuffer, b: KernelBuffer) -> bool:
    return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)


def _at_own_place(kernel: Kernel, written: int, read: int) -> bool:
    return all(_at_own(x, read) for x in kernel.stages)


def _in_row(kernel: Rows, written: int, read: int) -> bool:
    stored, rows = False, set()
    for m in kernel.members:
        known = [n for n, place in enumerate(m.places) if place == read]
        stores = [n for x in m.kernel.stages for n in x.outputs if n is not None and m.places[n] == written]
        later = m.kernel.stages[1:] if m.reduces else ()
        rows |= {m.by_row[n] for n in (*known, *stores)}
        if stored and known or any(not _at_own(x, n) for n in known for x in (m.kernel.stages if stores else later)):
            return False
        if stores and m.reduces or any(ref == ("buffer", n) for x in later for ref in x.args for n in known):
            return False
        stored = stored or bool(stores)
    return len(rows) == 1 and 0 not in rows


def _at_own(stage: Stage, buffer: int) -> bool:
    """Whether a stage reads a buffer, if at all, at the element that it makes."""
    slots = {slot for slot, ref in enumerate(stage.args) if ref == ("buffer", buffer)}
    for part in stage.template.parts:
        reads = [e for e in postorder(part.bodies) if isinstance(e, Read) and e.slot in slots]
        shape = stage.template.shape
        if reads and (isinstance(part.body, Reduce) or not all(is_identity(e, shape, shape) for e in reads)):
            return False
    return True


def poisoned(kernel: Kernel, base: Sequence[np.ndarray], want: dict[int, np.ndarray]) -> list[np.ndarray]:
    """Copies of the arrays; those that are only written hold rubbish."""
    arrays, known = [a.copy() for a in base], read_buffers(kernel)
    for n in want:
        if n not in known:
            arrays[n].reshape(-1).view(np.uint8)[:] = 255
    return arrays


def agree(
    arrays: Sequence[np.ndarray], base: Sequence[np.ndarray], want: dict[int, np.ndarray], what: str, tolerance: float
) -> None:
    """Written buffers hold the expected results, the others their old values."""
    for n, got in enumerate(arrays):
        expected, text = want.get(n, base[n]), f"{what} buffer {n}"
        if n in want and tolerance and got.dtype.kind == "f":
            scale = np.nanmax(np.abs(np.where(np.isfinite(expected), expected, 0)), initial=1.0)
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * scale, err_msg=text)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=text)


def check_exact(
    kernel: Kernel,
    configs: Sequence[Any] = (),
    seed: int = 0,
    target: Target | None = None,
    arrays: Sequence[np.ndarray] = (),
) -> int:
    """Contractions of small integers, as machine code: the evaluator's very floats."""
    return check(CONTRACTION, kernel, seed, [target or host()], arrays, 0, configs, native=True)
