"""What Triton is told beside the text of a kernel: that a product and a sum are not one instruction, and which pointers
may be taken for aligned."""

from __future__ import annotations

import numpy as np
import pytest

from einsmith.base.errors import CompileError
from einsmith.gpu.tiles.ir import TileBuilder, TileFunction, TileParameter
from einsmith.gpu.tiles.triton_text import signature, triton_text
from einsmith.gpu.triton.binary import OPTIONS
from tests.driver.test_second_backend import trained
from tests.tiles import stand_in
from tests.tiles.memory import Fault, Memory
from tests.tiles.test_programs import seated  # noqa: F401


def _run(f: TileFunction, arrays: list[np.ndarray], **more) -> None:
    held = [Memory(a.view(np.uint8), "f32", f"buffer {n}") for n, a in enumerate(arrays)]
    stand_in.run(triton_text([f]), [f], lambda p: held[p.buffer], **more)


def _difference(form: str) -> TileFunction:
    """A product less itself as memory holds it, in several forms."""
    b = TileBuilder("f")
    at = b.arange(64)
    x, y, held = (b.load(b.parameter(TileParameter("f32", 64, n)), at) for n in range(3))
    product = b.op("mul", x, y)
    out = {
        "x*y - p": lambda: b.op("sub", product, held),
        "p - x*y": lambda: b.op("sub", held, product),
        "x*y + -p": lambda: b.op("add", product, b.op("neg", held)),
    }[form]()
    b.store(b.parameter(TileParameter("f32", 64, 3)), at, out)
    return b.finish(1)


@pytest.mark.parametrize("form", ["x*y - p", "p - x*y", "x*y + -p"])
def test_a_product_is_the_one_that_memory_holds(form: str, rng: np.random.Generator) -> None:
    """As the derivatives of maxima ask of what is made again, which Triton's own choice of instructions would break."""
    x, y = (rng.standard_normal(64).astype(np.float32) for _ in range(2))
    exact, fused = np.full(64, 7, np.float32), np.full(64, 7, np.float32)
    _run(_difference(form), [x, y, x * y, exact], options=OPTIONS)
    np.testing.assert_array_equal(exact, np.zeros(64))
    _run(_difference(form), [x, y, x * y, fused], options={})
    assert (fused != 0).mean() > 0.5 and np.abs(fused).max() < 1e-6


def _copied() -> TileFunction:
    b = TileBuilder("copy")
    at = b.arange(4)
    x = b.load(b.parameter(TileParameter("f32", 4, 0)), at)
    b.store(b.parameter(TileParameter("f32", 4, 1)), at, x)
    for n, (elem, offset) in enumerate((("f64", 64), ("f64", 72), ("u8", 96))):
        b.parameter(TileParameter(elem, 4 + n, None, offset))
    return b.finish(1)


def test_pointers_are_promised_where_every_launch_keeps_it() -> None:
    f = _copied()
    work = ["*fp64:16", "*fp64", "*u8:16"]
    assert signature(f, [(64, 128, 0)]) == ["*fp32:16", "*fp32:16", *work]
    assert signature(f, [(64, 128, 64), (80, 132, 64)]) == ["*fp32:16", "*fp32", *work]
    assert signature(f, [(4, 8, 8)]) == ["*fp32", "*fp32", "*fp64", "*fp64:16", "*u8"]
    with pytest.raises(CompileError, match="nothing is known"):
        signature(f, [])


def test_a_promise_that_does_not_hold_is_a_fault() -> None:
    b = TileBuilder("copy")
    at = b.arange(4)
    b.store(b.parameter(TileParameter("f32", 4, 1)), at, b.load(b.parameter(TileParameter("f32", 4, 0)), at))
    f, room = b.finish(1), np.zeros(24, np.float32)
    start = -room.ctypes.data % 16 // 4
    base = room.ctypes.data + 4 * start
    for shift, off in ((0, False), (1, True), (2, True), (4, False)):
        arrays = [room[start + shift :][:4], room[start + 8 :][:4]]
        promised = {"copy": signature(f, [(base, base + 32)])}
        if off:
            with pytest.raises(Fault, match="p1, f32, is no multiple of 16 bytes"):
                _run(f, arrays, signatures=promised)
        _run(f, arrays, signatures={"copy": signature(f, [(base + 4 * shift, base + 32)])} if off else promised)


def test_slices_of_a_loop_are_not_promised(seated) -> None:  # noqa: F811
    """A recurrence's launches move its pointers from step to step, some of them off 16 bytes: what the first launch
    keeps is not what all keep."""
    made = seated(way="text")
    trained("texts")
    less = 0
    for code in made.made:
        for f in code.functions if code.launches else ():
            every, first = signature(f, code.launches), signature(f, code.launches[:1])
            less += every != first
            assert {n for n, s in enumerate(every) if ":" in s} <= {n for n, s in enumerate(first) if ":" in s}
    assert less
