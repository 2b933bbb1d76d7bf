"""Functions beside PyTorch's of the same name and arguments: values, gradients, gradients of gradients; and options
drawn so that every pair of values of two options occurs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import torch

import einsmith as es
from einsmith import functional as F
from einsmith.autodiff.reverse import gradients
from einsmith.tracing.builder import Value


def torch_testing(name: str) -> Any:
    """torch.testing._internal.<name>. It imports `expecttest`, of which lists of samples use nothing. Every list of
    samples looks for the unittest.TestCase that asks for it, reading the source of the whole stack: there is none."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    for part in ("common_utils", "opinfo.core"):
        importlib.import_module(f"torch.testing._internal.{part}").extract_test_fn = lambda: None  # type: ignore[attr-defined]
    return importlib.import_module(f"torch.testing._internal.{name}")


def pairwise(options: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Choices of a value for each option, so that every two values of two options occur together in one of them."""
    names = list(options)
    if len(names) < 2:
        return [dict(zip(names, values, strict=True)) for values in product(*options.values())]
    left = {
        (a, i, b, j)
        for a, b in combinations(range(len(names)), 2)
        for i in range(len(options[names[a]]))
        for j in range(len(options[names[b]]))
    }
    rows = []
    while left:
        a, i, b, j = min(left)
        row = {a: i, b: j}
        for c in range(len(names)):
            if c not in row:
                row[c] = max(range(len(options[names[c]])), key=lambda k: _covered(left, row, c, k))  # noqa: B023
        left -= {(a, row[a], b, row[b]) for a, b in combinations(range(len(names)), 2)}
        rows.append({names[c]: options[names[c]][row[c]] for c in range(len(names))})
    return rows


def _covered(left: set, row: Mapping[int, int], c: int, k: int) -> int:
    """How many pairs are left that value k of option c makes with the values in the row."""
    return sum(((c, k, d, m) if c < d else (d, m, c, k)) in left for d, m in row.items())


class _Torch:
    """Functions of PyTorch by name, wherever they stand: torch.nn.functional, torch, torch.special, torch.Tensor."""

    def __getattr__(self, name: str) -> Any:
        places = (torch.nn.functional, torch, torch.special, torch.Tensor)
        return next(getattr(p, name) for p in places if hasattr(p, name))


TORCH: Any = _Torch()


@dataclass
class Case:
    """A function under its name here and in torch, arrays to call it on, and values of its options.

    Attributes:
        name: name in `einsmith.functional`
        arrays: the tensors of a call, for a generator of random numbers
        options: names -> values; tensors among them are arrays
        smooth: how often it is differentiated
        tolerance: in float64, larger for what torch rounds to float32
        call: function of a library (`einsmith.functional` or `TORCH`), the tensors and the options, where it is not the
            library's function of this name
        theirs: the result in torch, where torch does not have the function
        every: whether all combinations of the options are drawn instead of every pair of values
    """

    name: str
    arrays: Callable[[np.random.Generator], Sequence[np.ndarray]]
    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    smooth: int = 2
    tolerance: float = 1e-9
    call: Callable | None = None
    theirs: Callable | None = None
    every: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def function(self) -> Callable:
        return partial(self.call, F) if self.call else getattr(F, self.name)

    @property
    def twin(self) -> Callable:
        """The function of torch; arrays among the options become tensors."""
        f = self.theirs or (partial(self.call, TORCH) if self.call else getattr(TORCH, self.name))
        return lambda *tensors, **options: f(*tensors, **as_torch(options))

    @property
    def draws(self) -> list[dict[str, Any]]:
        """Choices of a value for each option."""
        if self.every:
            return [dict(zip(self.options, values, strict=True)) for values in product(*self.options.values())]
        return pairwise(self.options)


def outputs(y: Any) -> tuple[Any, ...]:
    return tuple(y) if isinstance(y, (tuple, list)) else (y,)


def peers(arrays: Iterable[Any], grad: bool) -> list[Any]:
    return [torch.tensor(a, requires_grad=grad and a.dtype.kind == "f") for a in arrays]


def as_torch(options: Mapping[str, Any]) -> dict[str, Any]:
    return {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}


def derivatives(f: Callable, cotangents: Sequence[Any], second: Sequence[Any], values: Sequence[Value]) -> list[Value]:
    """Outputs, gradients and gradients of the gradients by the float values, for the cotangents given."""
    outs = outputs(f(*values))
    floats = [v.tensor for v in values if v.dtype.is_float]
    chosen = [o.tensor for o in outs if o.dtype.is_float]
    _, first = gradients(chosen, [c.tensor for c in cotangents], floats)
    again = gradients(first, [d.tensor for d in second], floats)[1] if second else []
    return [*outs, *map(Value, first), *map(Value, again)]


def wanted(f: Callable, arrays: Sequence[np.ndarray], rng: np.random.Generator, smooth: int):
    """torch's numbers in that order, and the cotangents that they are for."""
    given = peers(arrays, smooth > 0)
    floats = [t for t in given if t.requires_grad]
    outs = outputs(f(*given))
    if not smooth:
        return [o.numpy() for o in outs], [], []
    chosen = [o for o in outs if o.is_floating_point()]
    kind = floats[0].detach().numpy().dtype
    cotangents = [rng.normal(size=tuple(o.shape)).astype(kind) for o in chosen]
    total = sum((o * torch.tensor(c)).sum() for o, c in zip(chosen, cotangents, strict=True))
    first = torch.autograd.grad(total, floats, create_graph=smooth > 1, allow_unused=True)
    first = [torch.zeros_like(t) if g is None else g for g, t in zip(first, floats, strict=True)]
    second, again = [], []
    if smooth > 1:
        second = [rng.normal(size=tuple(t.shape)).astype(kind) for t in floats]
        total = sum((g * torch.tensor(d)).sum() for g, d in zip(first, second, strict=True))
        again = [None] * len(floats)
        if total.requires_grad:
            again = torch.autograd.grad(total, floats, allow_unused=True)
        again = [torch.zeros_like(t) if g is None else g for g, t in zip(again, floats, strict=True)]
    return [t.detach().numpy(force=True) for t in (*outs, *first, *again)], cotangents, second


def agree(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float) -> None:
    for n, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.shape == b.shape, f"result {n}: {a.shape}, {b.shape}"
        assert (a.dtype.kind == "f") == (b.dtype.kind == "f"), f"result {n}: {a.dtype}, {b.dtype}"
        scale = 1 + np.nanmax(np.abs(np.where(np.isfinite(b), b, 0))) if b.size and b.dtype.kind == "f" else 1
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=f"result {n}")


def _in_type(x: Any, kind: str) -> Any:
    return x.astype(kind) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def check(run: Callable, case: Case, options: Mapping[str, Any], rng: np.random.Generator, kind: str = "float64"):
    """Compare `run` of the case on floats of type `kind`: values and derivatives, in float32 to the first order."""
    arrays = [_in_type(np.asarray(a), kind) for a in case.arrays(rng)]
    options = {k: _in_type(v, kind) for k, v in options.items()}
    smooth = case.smooth if kind == "float64" else min(case.smooth, 1)
    exact = {k: _in_type(v, "float64") for k, v in options.items()}
    wide = [_in_type(a, "float64") for a in arrays]
    numbers, cotangents, second = wanted(lambda *a: case.twin(*a, **exact), wide, rng, smooth)
    n, m = len(cotangents), len(cotangents) + len(second)

    def f(*values: Value) -> tuple[Value, ...]:
        def called(*v: Value) -> Any:
            return case.function(*v, **options)

        if not smooth:
            return outputs(called(*values))
        return tuple(derivatives(called, values[:n], values[n:m], values[m:]))

    found = run(f, *(a.astype(kind) for a in (*cotangents, *second)), *arrays)
    agree(found, numbers, case.tolerance if kind == "float64" else 2e-5)


def compiled(f: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    """f(*arrays) by compiled code, as `run` of `check`."""
    return [np.asarray(a) for a in es.jit(f)(*arrays)]
