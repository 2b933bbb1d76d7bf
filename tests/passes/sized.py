"""Formulas at any size: the gallery's, convolutions whose filters stay, recurrences and recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.base.dtypes import DType
from einsmith.lang.op import Operator
from einsmith.nn import cells
from einsmith.nn.recurrence import GRU_FORMULA, LSTM_FORMULA, LSTM_PROJECTED_FORMULA, RNN_FORMULA, recurrence
from tests.gallery.convolutions import conv_case, convolution, spatial
from tests.gallery.entries import ENTRIES
from tests.gallery.entry import Entry, Ints
from tests.lang.recurrences import CASES, Case

Shaped = tuple[tuple[int, ...], DType]


@dataclass(frozen=True)
class Call:
    """A call of an operator on tensors of which only shapes and types are told."""

    operator: Operator
    tensors: Mapping[str, Shaped]
    parameters: Mapping[str, Any]

    @property
    def arguments(self) -> list[Shaped]:
        return [self.tensors[n] for n in self.operator.inputs]

    def value(self, *xs: Any) -> Any:
        return self.operator(**dict(zip(self.operator.inputs, xs, strict=True)), **self.parameters)

    def gradient(self, *xs: Any) -> Any:
        """Of the sum of the results' squares, by all inputs of floats."""
        at = [i for i, (_, dtype) in enumerate(self.arguments) if dtype.is_float]

        def total(*floats: Any) -> Any:
            given = list(xs)
            for i, x in zip(at, floats, strict=True):
                given[i] = x
            results = self.value(*given)
            results = results if isinstance(results, tuple) else (results,)
            return sum(((y * y).sum() for y in results if y.tensor.dtype.is_float), start=0.0)

        return es.grad(total, tuple(range(len(at))))(*(xs[i] for i in at))


@dataclass(frozen=True)
class Sized:
    """`at(n)` is the call whose extents are n times those of the smallest one; `base`: the n from which register tiles
    and unrolled bodies are full."""

    name: str
    at: Callable[[int], Call]
    base: int


def times(n: int, shape: Sequence[int], stays: Sequence[int] = ()) -> tuple[int, ...]:
    """A shape n times as large, but for dimensions of one and for those that stay."""
    return tuple(x if x == 1 or d in stays else x * n for d, x in enumerate(shape))


# ---------------------------------------------------------------------------------------------------------- gallery

BASES = {"capsule": 5, "3d": 17}
"""Of formulas of which eight or ten axes would otherwise have more points than an integer of 64 bits counts."""


def _relative(n: int, case: dict[str, Any]) -> dict[str, Any]:
    return case | {"B": (2 * case["Q"][1] - 1,)}


def _same(n: int, case: dict[str, Any]) -> dict[str, Any]:
    return case


SETTINGS: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "relative-position attention": _relative,
    "reshape that divides nothing": lambda n, case: case | {"w": case["w"] * n},
    "product of axes X[i*j]": lambda n, case: case | {"n": 4 * n, "m": 5 * n, "X": (20 * n * n,)},
    "i+j with i-j": lambda n, case: case | {"n": 5 * n, "X": (10 * n, 10 * n)},
    "2i+3j": lambda n, case: case | {"n": 5 * n, "m": 4 * n},
    "windows X[i+j]": lambda n, case: case | {"k": 3 * n},
    "nearest upsampling": lambda n, case: case | {"n": 6 * n, "m": 15 * n},
    "adaptive average pooling": lambda n, case: case | {"n": 3 * n},
    "adaptive max pooling": lambda n, case: case | {"n": 3 * n},
    "a guard on a remainder": lambda n, case: case | {"n": 3 * n},
    "a guard on a minimum": lambda n, case: case | {"n": 3 * n},
}
"""Parameters that are extents, and extents that are no multiple of others."""


def _gallery(entry: Entry) -> Sized:
    def at(n: int) -> Call:
        grown: dict[str, Any] = {}
        for name, x in entry.cases[0].items():
            shape = x.shape if isinstance(x, Ints) else x
            grown[name] = times(n, shape) if isinstance(shape, tuple) else x
        grown = SETTINGS.get(entry.name, _same)(n, grown)
        tensors: dict[str, Shaped] = {}
        for name, x in entry.cases[0].items():
            if isinstance(x, (Ints, tuple)):
                tensors[name] = grown.pop(name), dt.i64 if isinstance(x, Ints) else dt.f32
        return Call(es.op(entry.formula, extents=entry.extents), tensors, grown)

    return Sized(entry.name, at, next((n for part, n in BASES.items() if part in entry.name), 67))


def _filters_stay(dims: int, groups: str, stride: int) -> Sized:
    """A convolution with filters of three places along each dimension."""
    name = {"1": "", "2": ", grouped", "all": ", depthwise"}[groups]
    image = ([4], [2, 2], [2, 1, 2])[dims - 1]
    per = {"1": 2, "2": 1, "all": 1}[groups]

    def at(n: int) -> Call:
        x = (n, 2 * n, *(2 * k * n + 1 for k in image))
        w = (2 * n, per * n if groups != "all" else 1, *[3] * dims)
        more = {"depth": 1} if groups == "all" else {}
        case = conv_case(x, w, stride, padding=1, **more)
        tensors = {k: (case.pop(k), dt.f32) for k in ("X", "W")}
        return Call(es.op(convolution(dims, groups), extents=spatial(dims)), tensors, case)

    return Sized(f"convolution in {dims}d, three taps, stride {stride}{name}", at, 17 if dims == 3 else 67)


# ------------------------------------------------------------------------------------------------------ recurrences

STAYS = {"second_order_filter": {"a": (0,)}, "filter_with_state": {"a": (0,), "s": (0,)},
         "bidirectional_gates": {"X": (0, 1), "U": (0, 1)}, "conv_lstm": {"U": (2, 3)}}  # fmt: skip
"""Dimensions that the formula indexes by numbers, and a filter's."""


def _recurrence(name: str, case: Case) -> Sized:
    def at(n: int) -> Call:
        tensors: dict[str, Shaped] = {}
        for which, x in zip(case.formula.inputs, case.inputs, strict=True):
            shape = times(n, x.shape, STAYS.get(name, {}).get(which, ()))
            tensors[which] = shape, dt.f32 if x.dtype.kind == "f" else dt.i64
        settings = {k: v * n if isinstance(v, int) else v for k, v in case.parameters.items()}
        return Call(case.formula, tensors, settings)

    return Sized(name, at, 13 if name == "conv_lstm" else 67)


def _gates(count: int, *more: str) -> dict[str, tuple[str, ...]]:
    rows = f"{count}H"
    return {
        "x": ("T", "N", "I"), "h0": ("N", "H"), "c0": ("N", "H"), "W_ih": (rows, "I"), "W_hh": (rows, "H"),
        **{name: (rows,) for name in ("b_ih", "b_hh", *more)},
    }  # fmt: skip


CELLS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "RNN": (RNN_FORMULA, _gates(1)),
    "LSTM": (LSTM_FORMULA, _gates(4)),
    "projected LSTM": (LSTM_PROJECTED_FORMULA, _gates(4) | {"h0": ("N", "S"), "W_hh": ("4H", "S"), "W_hr": ("S", "H")}),
    "GRU": (GRU_FORMULA, _gates(3)),
    "MILSTM": (cells.MILSTM_FORMULA, _gates(4, "alpha", "beta1", "beta2")),
    "SCRN": (cells.SCRN_FORMULA, {"x": ("T", "N", "I"), "h0": ("N", "H"), "s0": ("N", "S"), "B": ("S", "I"),
                                  "W": ("H", "SIH"), "b_h": ("H",)}),
    "SubLSTM": (cells.SUBLSTM_FORMULA, _gates(4)),
    "LLTM": (cells.LLTM_FORMULA, _gates(1) | {"W": ("3H", "HI"), "bias": ("3H",)}),
}  # fmt: skip
"""Formulas of einsmith.nn, with the inputs' dimensions: sums of T steps, N sequences, I inputs, H and S states."""


def _cell(name: str) -> Sized:
    text, shapes = CELLS[name]

    def at(n: int) -> Call:
        sizes = {"T": 3 * n, "N": n, "I": 2 * n, "H": 3 * n, "S": 2 * n}
        operator = recurrence(text)

        def extent(d: str) -> int:
            count, letters = (int(d[0]), d[1:]) if d[0].isdigit() else (1, d)
            return count * sum(sizes[x] for x in letters)

        tensors = {k: (tuple(map(extent, s)), dt.f32) for k, s in shapes.items()}
        known = {"H": sizes["H"], "S": sizes["S"], "alpha": 0.5}
        settings = {k: v for k, v in known.items() if k in operator.program.parameters}
        return Call(operator, tensors, settings)

    return Sized(name, at, 33)


ALL = [
    *map(_gallery, ENTRIES),
    *(_filters_stay(d, g, s) for d in (1, 2, 3) for g in ("1", "2", "all") for s in (1, 2)),
    *(_recurrence(name, case) for name, case in CASES.items()),
    *map(_cell, CELLS),
]
