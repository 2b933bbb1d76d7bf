"""Keep symbolic sizes of PyTorch's graphs open in a formula's results, and note those that an operator fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from einsmith.frontends.torch_program import Program, read
from einsmith.lang.copied import find_copied_dimensions
from einsmith.lang.op import Operator

FIXED: ContextVar[dict[str, list[str]] | None] = ContextVar("einsmith_fixed_sizes", default=None)
"""Names of the operators that fixed a symbolic size while a module was exported -> each size of a formula with the
part that needs it, "" for an operator that fixes all of its sizes."""


def is_symbolic(n: Any) -> bool:
    """Return whether a size is a symbol, or computed from symbols."""
    return isinstance(n, torch.SymInt) and not n.node.expr.is_number


def hint(n: Any) -> int:
    """Return the example's value of a size, without fixing a symbolic one. Raises RuntimeError where there is none."""
    value = n.node.hint if isinstance(n, torch.SymInt) else n
    return int(n if value is None else value)


def fix(operator: str, n: Any, d: int, why: tuple[str, str] | None) -> int:
    """Return a size as a number, which a symbolic one is from then on, and note that `operator` fixed it.

    why: the input with this size as its dimension d, and the part of the formula that needs it.
    """
    symbolic, size = is_symbolic(n), int(n)
    if symbolic and (noted := FIXED.get()) is not None:
        reasons = noted.setdefault(operator, [])
        reason = f"{why[0]}.shape[{d}] = {size} by {why[1]}" if why else ""
        if reason not in reasons:
            reasons.append(reason)
    return size


def copied_sizes(
    formula: Operator | None, program: Program, tensors: Sequence[torch.Tensor]
) -> tuple[dict[tuple[int, int], Any], dict[tuple[int, int], tuple[str, str]]]:
    """Return the symbolic size of every dimension that a formula copies, and (input, reason) of the others.

    Both are by (position of the tensor, dimension). Positions of a formula's outputs are -1, -2, ... and those of a
    pullback's cotangents follow the inputs'. Both are empty for other programs.
    """
    parts = read(program)[1]
    if formula is None or len(parts) > 1 or (parts and parts[0][1] != ":"):
        return {}, {}
    inputs, outputs = formula.inputs, formula.program.outputs
    shapes = {n: x.shape for n, x in zip(inputs, tensors, strict=False)}
    if any(len(s) != formula.program.inputs[n] for n, s in shapes.items()):
        return {}, {}  # tracing raises the error
    copied = find_copied_dimensions(formula.program, {n: (1,) * len(s) for n, s in shapes.items()})
    why = {(inputs.index(n), d): (n, reason) for (n, d), reason in copied.why.items()}
    apart: dict[tuple[str, int], tuple[str, int]] = {}
    for (name, d), (tensor, e) in copied.sources.items():
        if name in shapes and shapes[tensor][e] != shapes[name][d]:  # a comparison of symbols is a guard
            apart[tensor, e] = name, d
    free: dict[tuple[int, int], Any] = {}
    for (name, d), source in copied.sources.items():
        if source in apart:
            if name in shapes:
                tensor, e = apart[source]
                one, two = f"{source[0]}.shape[{source[1]}]", f"{tensor}.shape[{e}]"
                why[inputs.index(name), d] = name, f"one axis for {one} and {two}, which differ in the example"
            continue
        size = shapes[source[0]][source[1]]
        if name in shapes:
            free[inputs.index(name), d] = size
        if name in outputs:
            free[-1 - outputs.index(name), d] = size
    if parts:  # a cotangent has the shape of an output
        n = parts[0][0]
        free |= {(k, d): size for k, x in enumerate(tensors[n:], n) for d, size in enumerate(x.shape)}
    return free, why


def describe_fixed(fixed: Mapping[str, Sequence[str]]) -> str:
    """Say which operators fixed sizes (name -> reasons, see `FIXED`) and what leaves sizes open."""
    if not fixed:
        return ""
    several = len(fixed) > 1
    sizes = [", ".join(why) for why in fixed.values() if any(why)]
    calls = "es.op" if len(sizes) == len(fixed) else "es.op or function"
    named = f" ({'; '.join(sizes)})" if sizes else ""
    return (
        f"The operator{'s' * several} {', '.join(fixed)} (einsmith.frontends.torch.operator) "
        f"fix{'' if several else 'es'} sizes{named}: PyTorch's graph keeps open "
        "only those that a formula copies, indexing them by plain axes alone. Write that part as an es.nn.Module which "
        f"calls the {calls} itself"
    )
