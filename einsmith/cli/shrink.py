"""Make a failing formula smaller: `einsmith shrink` finds the smallest formula and sizes that still fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.random import default_rng

from einsmith.api.jit import Jitted
from einsmith.api.tracing import trace_call
from einsmith.api.transforms import check_gradients, grad
from einsmith.base import files
from einsmith.base.arguments import describe
from einsmith.base.arrays import to_array
from einsmith.checking.shrink import shrink
from einsmith.checking.tolerance import errors
from einsmith.cli.programs import run_file
from einsmith.ir.evaluator import evaluate
from einsmith.ir.rewrite.simplify import values_only
from einsmith.lang.op import Operator
from einsmith.lang.syntax import (
    Ast,
    Cast,
    Name,
    Number,
    ParsedApply,
    ParsedRead,
    ParsedReduction,
    ShapeOf,
    Source,
    walk,
)
from einsmith.lang.unparse import unparse

ORIGINAL, WHOLE, ONES = 2, 1, 0
"""Values of the inputs: those given, small whole numbers, ones."""
_NEED = "`op`, a formula (es.op), and `inputs`, a tuple of its arrays or a dictionary of them by name"


@dataclass(frozen=True)
class FailingCall:
    """A call of a formula. extents: as in es.op; inputs: arrays by name; parameters: numbers by name."""

    source: Source
    extents: Mapping[str, int | str]
    inputs: Mapping[str, np.ndarray]
    parameters: Mapping[str, Any]

    def operator(self) -> Operator:
        """Return the formula, parsed from its text. Raises FormulaError."""
        return Operator(unparse(self.source), self.extents or None, "op", dict(self.parameters))


def shrink_file(file: Path, *, gradients: bool, seconds: float, output: Path | None, as_json: bool) -> None:
    """Print, or write to `output`, the smallest formula and sizes that fail as those of a Python file do.

    gradients: whether the gradients are looked at too; seconds: how long to search. Raises click.ClickException where
    the file's formula does not fail.
    """
    call = _read(file)
    first = find_failure(call, gradients)
    if first is None:
        more = "" if gradients else "; --gradients looks at the gradients too"
        raise click.ClickException(
            f"the formula of {file} raises no error, and its results are those of the reference evaluator{more}"
        )
    smallest = minimize(call, lambda c: find_failure(c, gradients), first, seconds)
    last = find_failure(smallest, gradients)
    assert last is not None
    text = as_file(smallest, f"{last[0]}: {last[1]}", gradients)
    if output is not None:
        files.write(output, text)
    if as_json:
        shapes = {n: list(a.shape) for n, a in smallest.inputs.items()}
        report = {"failure": last[0], "message": last[1], "formula": unparse(smallest.source), "shapes": shapes}
        click.echo(json.dumps(report | {"file": text}))
    elif output is not None:
        click.echo(f"{output}: {last[0]}")
    else:
        click.echo(text, nl=False)


def _read(file: Path) -> FailingCall:
    names = run_file(file, ("op", "inputs"), _NEED)
    operator, inputs = names["op"], names["inputs"]
    if not isinstance(operator, Operator):
        raise click.ClickException(f"`op` of {file} is {describe(operator)}, not a formula made by es.op")
    if not isinstance(inputs, dict):
        inputs = dict(zip(operator.inputs, inputs, strict=False))
    if missing := [n for n in operator.inputs if n not in inputs]:
        raise click.ClickException(f"`inputs` of {file} lack {missing[0]}; the formula is {operator.signature}")
    arrays = {n: np.array(to_array(inputs[n], n)) for n in operator.inputs}
    extents = operator._constructor_args[1] or {}
    parameters = operator.defaults | dict(names.get("parameters", {}))
    return FailingCall(operator.program.source, dict(extents), arrays, parameters)


# ---------------------------------------------------------------------------------------------------------- failures


def find_failure(call: FailingCall, gradients: bool) -> tuple[str, str] | None:
    """Return the kind of a call's failure and its message: an error of that class, or results that differ from those of
    the reference evaluator by more than roundings; None where it does not fail.

    gradients: whether the gradients by all float inputs are compared too, with the evaluator's and with central
    differences (GradientError).
    """
    try:
        operator = call.operator()
        arrays = {n: call.inputs[n] for n in operator.inputs}
        failure = _compare(lambda *xs: operator(*xs), list(arrays.values()), "results differ")
        if failure is None and gradients:
            failure = _compare_gradients(operator, list(arrays.values()))
    except Exception as e:
        return type(e).__name__, str(e)
    return failure


def _compare(f: Callable, arrays: Sequence[np.ndarray], kind: str) -> tuple[str, str] | None:
    traced = trace_call(f, tuple(arrays), {})
    got = Jitted(f)(*arrays)
    outputs = list(got) if isinstance(got, tuple) else [got]
    inputs = [*arrays, *(traced.bind[x] for x in traced.graph.inputs[len(arrays) :])]
    graph = values_only(traced.graph)
    wanted, _ = evaluate(graph, inputs)
    bounds, _ = errors(graph, inputs)
    for n, (g, w, (_, bound)) in enumerate(zip(outputs, wanted, bounds, strict=False)):
        with np.errstate(invalid="ignore"):
            far = np.abs(g.astype(float) - w) > bound if g.dtype.kind != "b" else (g != w) & ~(bound > 0)
            far |= (np.isnan(g.astype(float)) != np.isnan(w.astype(float))) & (bound != np.inf)
        if far.any():
            at = tuple(map(int, np.unravel_index(np.argmax(far), far.shape)))
            return kind, (
                f"result {n}, {int(far.sum())} of {far.size} elements; at {list(at)} it is {g[at]}, and {w[at]} by the "
                f"reference evaluator (roundings: at most {bound[at]:.2g})"
            )
    return None


def _compare_gradients(operator: Operator, arrays: Sequence[np.ndarray]) -> tuple[str, str] | None:
    at = tuple(n for n, a in enumerate(arrays) if a.dtype.kind == "f")
    if not at:
        return None

    def total(*xs: Any) -> Any:
        out = operator(*xs)
        terms = [x.sum() for x in (out if isinstance(out, tuple) else (out,)) if x.dtype.is_float]
        return sum(terms[1:], terms[0])

    failure = _compare(grad(total, at), arrays, "gradients differ")
    if failure is None:
        check_gradients(total, *arrays, order=1)
    return failure


# -------------------------------------------------------------------------------------------------------- reductions


class _Choices:
    """Sequence of integers that encodes a reduction of a call; `_part` decodes it by taking one after the other.

    The largest choice everywhere encodes the original call; choices missing at the end are 0.
    choices: the integers; None for the original call. taken: those taken so far, each cut to its limit.
    """

    def __init__(self, choices: Sequence[int] | None):
        self._choices = choices
        self.taken: list[int] = []

    def take(self, limit: int) -> int:
        """Return the next choice, from 0 to `limit`."""
        n = len(self.taken)
        chosen = limit if self._choices is None else self._choices[n] if n < len(self._choices) else 0
        self.taken.append(min(chosen, limit))
        return self.taken[-1]


def minimize(
    call: FailingCall, find: Callable[[FailingCall], tuple[str, str] | None], failure: tuple[str, str], seconds: float
) -> FailingCall:
    """Return the smallest part of a call found that fails in the same way."""
    original = _Choices(None)
    _part(call, original)

    def fails(choices: list[int]) -> list[int] | None:
        reader = _Choices(choices)
        part = _part(call, reader)
        fault = None if part is None else find(part)
        return reader.taken if fault is not None and fault[0] == failure[0] else None

    choices = shrink(original.taken, fails, seconds)
    part = _part(call, _Choices(choices))
    assert part is not None
    return part


def _part(call: FailingCall, choose: _Choices) -> FailingCall | None:
    """Return a part of a call: fewer statements, smaller expressions, smaller extents, simpler values. None where
    nothing is left."""
    kept = [s for s in call.source.statements if choose.take(1)]
    statements = tuple(replace(s, value=_smaller(s.value, choose)) for s in kept)
    sizes = {key: _ladder(n)[choose.take(len(_ladder(n)) - 1)] for key, n in _extents(call).items()}
    values = choose.take(ORIGINAL)
    if not statements:
        return None
    defined = {s.name for s in statements}
    returns = tuple(r for r in call.source.returns or () if r[0] in defined) or None
    source = Source("", statements, returns)
    nodes = [x for s in statements for e in (*s.index, s.value) for x in walk(e)]
    read = {x.name for x in nodes if isinstance(x, (ParsedRead, ShapeOf))}
    inputs = {n: _simple(_cut(call, n, sizes), values) for n in call.inputs if n in read}
    words = {x.id for x in nodes if isinstance(x, Name)}
    axes = words | {a for x in nodes if isinstance(x, ParsedReduction) for a in x.axes}
    extents = {a: sizes.get(a, n) if isinstance(n, int) else n for a, n in call.extents.items() if a in axes}
    return FailingCall(source, extents, inputs, {p: x for p, x in call.parameters.items() if p in words})


def _smaller(e: Ast, choose: _Choices) -> Ast:
    """Return an expression, or 1, or one of its operands, in place of it; so of what is below it. Indices stay."""
    operands = e.args if isinstance(e, (ParsedApply, Cast, ParsedReduction)) else ()
    chosen = choose.take(1 + len(operands))
    parts = [_smaller(a, choose) for a in operands]
    if chosen == 0:
        return e if isinstance(e, Number) else Number(e.at, 1)
    if chosen <= len(parts):
        return parts[chosen - 1]
    if isinstance(e, ParsedApply):
        return replace(e, operands=tuple(parts))
    if isinstance(e, Cast):
        return replace(e, operand=parts[0])
    return replace(e, body=parts[0]) if isinstance(e, ParsedReduction) else e


def _ladder(n: int) -> list[int]:
    """Return the extents to try in place of n: small ones, those around powers of two, and n itself."""
    near = {2**k + d for k in range(n.bit_length()) for d in (-1, 0, 1)}
    return sorted({m for m in near if 0 < m < n} | {n})


def _keys(call: FailingCall) -> Iterator[tuple[str, int, Any]]:
    """Yield (input, dimension, what its extent follows: an axis, or the dimension itself)."""
    plain: dict[tuple[str, int], str] = {}
    for s in call.source.statements:
        for e in (*s.index, s.value):
            for x in walk(e):
                if isinstance(x, ParsedRead) and x.name in call.inputs:
                    for d, index in enumerate(x.index):
                        if isinstance(index, Name):
                            plain.setdefault((x.name, d), index.id)
    for name, a in call.inputs.items():
        for d in range(a.ndim):
            yield name, d, plain.get((name, d), (name, d))


def _extents(call: FailingCall) -> dict[Any, int]:
    """Return the extents that can be made smaller, by what they follow."""
    out: dict[Any, int] = {}
    for name, d, key in _keys(call):
        n = call.inputs[name].shape[d]
        out[key] = min(out.get(key, n), n)
    return {a: n for a, n in call.extents.items() if isinstance(n, int)} | {k: n for k, n in out.items() if n}


def _cut(call: FailingCall, name: str, sizes: Mapping[Any, int]) -> np.ndarray:
    """Return the first elements of an input, as many as `sizes` says along each dimension."""
    at = tuple(slice(0, sizes.get(key)) for n, _, key in _keys(call) if n == name)
    return call.inputs[name][at]


def _simple(a: np.ndarray, values: int) -> np.ndarray:
    if values == ORIGINAL:
        return a
    if a.dtype.kind != "f":
        return np.zeros_like(a) if values == ONES else a
    return np.ones_like(a) if values == ONES else default_rng(0).integers(-3, 4, a.shape).astype(a.dtype)


# -------------------------------------------------------------------------------------------------------------- text


def as_file(call: FailingCall, failure: str, gradients: bool) -> str:
    """Return a Python file that makes the call, and that `einsmith shrink` reads too."""
    operator = call.operator()
    body = "".join(f"    {line}\n" for line in unparse(call.source).splitlines())
    options = f", extents={dict(call.extents)!r}" if call.extents else ""
    arrays = "".join(f"    {_array(call.inputs[n])},\n" for n in operator.inputs)
    reason = "".join(f"# {line}\n" for line in failure.splitlines())
    seen = "    print(es.interpret(op)(*inputs, **parameters))  # the reference evaluator\n"
    if gradients:
        at = tuple(n for n, name in enumerate(operator.inputs) if call.inputs[name].dtype.kind == "f")
        seen += f"    total = lambda *xs: op(*xs, **parameters).sum()\n    print(es.grad(total, {at})(*inputs))\n"
        seen += f"    print(es.interpret(es.grad(total, {at}))(*inputs))\n"
    return (
        f"{reason}import numpy as np\nfrom numpy import inf, nan\n\nimport einsmith as es\n\n"
        f'op = es.op(\n    """\n{body}    """{options}\n)\n'
        f"inputs = (\n{arrays})\nparameters = {dict(call.parameters)!r}\n\n"
        f'if __name__ == "__main__":\n    print(op(*inputs, **parameters))\n{seen}'
    )


def _array(a: np.ndarray) -> str:
    dtype = f"np.{a.dtype.name}" if a.dtype.kind != "b" else "bool"
    if a.size and (a == 1).all():
        return f"np.ones({a.shape}, {dtype})"
    if not a.any() and not np.signbit(a.astype(float)).any():
        return f"np.zeros({a.shape}, {dtype})"
    return f"np.array({a.tolist()!r}, {dtype})"
