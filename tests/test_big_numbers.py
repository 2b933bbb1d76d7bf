"""Numbers near 2**40 to 2**63 end soon, in a result or in a clear error: options of operators and layers, extents,
numbers in formulas, shapes of arrays."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest

import einsmith as es
from einsmith.ops.pooling import _Adaptive
from tests.base.test_arguments import required
from tests.test_raw_errors import public

F, nn = es.functional, es.nn
NUMBERS = (2**40, 2**62, 2**63 - 1, -(2**40), -(2**63))


@pytest.fixture(autouse=True)
def ends():
    """Stop a call that would never end before it fills the memory."""

    def stop(*_: Any) -> None:
        raise TimeoutError("the call does not end")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fault(call: Callable[[], Any]) -> str | None:
    """What a call raises that is no clear error."""
    try:
        call()
    except (es.VerifyError, es.CompileError, TimeoutError) as e:
        return f"{type(e).__name__}: {e}"
    except es.EinsmithError:
        return None
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None


def with_big_numbers(x: Any) -> Iterator[Any]:
    """An option with a big number in place of each integer in it."""
    if type(x) is int or x is None:
        yield from NUMBERS
    elif isinstance(x, (tuple, list)):
        for n, y in enumerate(x):
            for other in with_big_numbers(y) if y is not None else ():
                yield (*x[:n], other, *x[n + 1 :])


def faults(f: Callable[..., Any], options: dict[str, Any]) -> list[str]:
    return [
        f"{name}={x}: {text}"
        for name, value in options.items()
        for x in with_big_numbers(value)
        if (text := fault(partial(f, **{**options, name: x}))) is not None
    ]


def operators() -> list[Any]:
    torch = pytest.importorskip("torch", reason="the samples name its functions")
    assert torch
    from tests.operators.samples import SAMPLES

    return [case for case in SAMPLES if case.call is None]


def options_of(f: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The options of a call, with those by default that are integers or may be."""
    found = inspect.signature(f).parameters.values()
    whole = {p.name: p.default for p in found if p.default is not p.empty and _is_whole(p)}
    return {**whole, **given}


def _is_whole(p: inspect.Parameter) -> bool:
    kind = str(p.annotation)
    return type(p.default) is int or p.default is None and any(k in kind for k in ("int", "Count", "Size", "Ints"))


PARTS = 24


@pytest.mark.thinned(8)
@pytest.mark.parametrize("part", range(PARTS))
def test_options_of_operators(part, rng):
    wrong = []
    for case in operators()[part::PARTS]:
        arrays = [np.asarray(a) for a in case.arrays(rng)]
        arrays = [a.astype("float32") if a.dtype.kind == "f" else a for a in arrays]
        f = getattr(F, case.name)
        wrong += [f"{case.name} {text}" for text in faults(partial(f, *arrays), options_of(f, case.draws[-1]))]
    assert not wrong, "\n".join(wrong)


def layers() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    for name, kind in public(nn):
        if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.Module:
            try:
                kind(**required(kind))
            except es.EinsmithError:  # its sizes depend on each other
                continue
            yield name, kind, options_of(kind, required(kind))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_options_of_layers():
    wrong = [f"{name} {text}" for name, kind, given in layers() for text in faults(kind, given)]
    assert not wrong, "\n".join(wrong)


X = np.ones((1, 3, 8, 8), np.float32)
strided = es.op("y[i] = sum[r](where(0 <= i*s + r < 4, x[i*s + r], 0))", extents={"i": 3, "r": 4})
CALLS = {
    "padding of windows": lambda: F.conv2d(X, np.ones((4, 3, 3, 3), np.float32), padding=2**40),
    "both sides padded": lambda: F.pad(X, (2**62, 2**62)),
    "a result of 71 dimensions": lambda: F.reshape(X, (1,) * 70 + (192,)),
    "a tensor of 71 dimensions": lambda: es.jit(lambda x: es.sum(F.reshape(x, (1,) * 70 + (192,))))(X),
    "an interval that ends at -2**63": lambda: strided(np.ones(4, np.float32), s=-(2**62)),
    "a small array, broadcast": lambda: es.op("y[i] = x[i]")(np.broadcast_to(np.float32(1), 2**42)),
    "windows that differ": lambda: F.adaptive_avg_pool2d(X, 2**40),
    "layers": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(2, 1, 2), 2**40),
    "layers of a recurrence": lambda: nn.LSTM(1, 1, 2**40),
    "a mask": lambda: nn.Transformer.generate_square_subsequent_mask(2**40),
    "statistics": lambda: nn.BatchNorm1d(2**40, affine=False),
    "ranges": lambda: nn.FakeQuantize(channels=2**62),
    "derivatives": lambda: es.check_gradients(lambda x: x * x, np.ones(3), order=2**40),
    "compute": lambda: es.jit(lambda: es.compute((2**62, 4), lambda i, j: 1.0))(),
    "a sum": lambda: es.jit(lambda: es.compute((2,), lambda i: es.sum(1.0 * i, over=es.axes(2**63 - 1))))(),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    assert fault(CALLS[name]) is None
    with pytest.raises(es.EinsmithError):
        CALLS[name]()


FORMULAS = (
    "y[i] = x[i*B % 8]", "y[i] = x[i//B]", "y[i] = where(i*B < 3, x[i], 0)", "y[i] = where(i < B, x[i], 0)",
    "y[i] = x[i]*B", "y[i] = x[min(abs(i*B), 7)]", "y[i] = x[max(i-B, 0) % 8]", "y[i*B] += x[i]",
    "y[(i*B) % 7] += x[i]", "y[i] = sum[r](where(0 <= i*B + r < 8, x[i*B + r], 0))",
    "y[i] = sum[r](where(0 <= i - B*r < 8, x[i - B*r], 0))", "y[i] = where(i >= B, y[i-B], 1.0) + x[i]",
)  # fmt: skip


@pytest.mark.thinned(3)
@pytest.mark.parametrize("number", [*NUMBERS, 2**60, -(2**60), 2**63, 10**30])
@pytest.mark.parametrize("text", FORMULAS)
def test_formulas(text, number):
    x = np.arange(8, dtype=np.float32)
    extents = {"i": 8} | ({"r": 8} if "[r]" in text else {}) | ({"y.shape[0]": 8} if "+=" in text else {})
    assert fault(lambda: es.op(text.replace("B", f"({number})"), extents=extents)(x)) is None
    assert fault(lambda: es.op(text.replace("B", "n"), extents=extents)(x, n=number)) is None
    for name in extents.keys() - {"r"}:  # a sum over so many terms takes its time
        assert fault(lambda: es.op(text.replace("B", "2"), extents={**extents, name: number})(x)) is None  # noqa: B023


@pytest.mark.parametrize("extent", [1, 2, 5, 8, 12, 31])
def test_the_longest_window_of_adaptive_pooling(extent):
    for count in range(1, 40):
        w = _Adaptive(extent, count)
        assert w.kernel == max(w.end(p) - w.begin(p) for p in range(count)), (extent, count)


def test_shapes_that_no_array_has_are_named():
    with pytest.raises(es.ShapeError, match=r"71 dimensions; an array has at most"):
        CALLS["a result of 71 dimensions"]()
    shape = (*X.shape[:3], 8 + 2**63)
    with pytest.raises(es.ShapeError, match=str(shape[-1])):
        CALLS["both sides padded"]()
    assert prod(shape) > 2**63
    with pytest.raises(es.FormulaError, match=r"exceeds its type i64(.|\n)*y\[i\] = sum"):
        CALLS["an interval that ends at -2**63"]()
