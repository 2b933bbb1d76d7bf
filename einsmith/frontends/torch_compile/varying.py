"""Trace a function once for sizes that vary, outside of Dynamo: examples with symbols, and what these must satisfy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

__all__ = ["ForSizes", "Varies", "symbolic", "varies"]

Varies = tuple[bool, ...]
"""Which dimensions of a tensor vary; of a number one element, whether it does."""


def varies(example: Any) -> Varies:
    """Return what varies of an argument with this example."""
    return tuple(isinstance(n, torch.SymInt) for n in _sizes(example))


Holds = Callable[[Sequence[Any]], bool]
"""Tells whether arguments have sizes that a function was traced for."""


@dataclass(frozen=True)
class ForSizes:
    """A function compiled for some sizes, and the positions of the arguments that it needs."""

    holds: Holds
    call: Callable[..., Any]
    read: set[int]


def symbolic(args: Sequence[Any], varying: Sequence[Varies]) -> tuple[list[Any], Callable[[], Holds]]:
    """Return (example arguments with symbolic sizes, function that returns a guard once they have been traced).

    The guard tells whether the traced function is right for other arguments. Dimensions of equal size share a symbol;
    sizes 0 and 1 are constants.
    """
    if not any(map(any, varying)):
        return [_leaf(x) for x in args], lambda: lambda _: True
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    examples = []
    for k, (x, which) in enumerate(zip(args, varying, strict=True)):
        source = ConstantSource(f"argument_{k}")
        if isinstance(x, torch.Tensor):
            context = StatelessSymbolicContext([DimDynamic.DUCK if v else DimDynamic.STATIC for v in which])
            examples.append(mode.from_tensor(_leaf(x), source=source, symbolic_context=context))
        else:
            symbol = shapes.create_symbol(x, source) if any(which) else None
            examples.append(x if symbol is None else shapes.create_symintnode(symbol, hint=x, source=source))

    def guard() -> Holds:
        symbols = [k for k, x in enumerate(examples) if isinstance(x, (torch.Tensor, torch.SymInt))]
        code = shapes.produce_guards_expression([examples[k] for k in symbols])
        constant = [_constant(x) for x in examples]

        def holds(values: Sequence[Any]) -> bool:
            sizes = (zip(fixed, _sizes(x), strict=True) for fixed, x in zip(constant, values, strict=True))
            if any(n is not None and n != m for pairs in sizes for n, m in pairs):
                return False
            return not code or bool(shapes.evaluate_guards_expression(code, [values[k] for k in symbols]))

        return holds

    return examples, guard


def _leaf(x: Any) -> Any:
    return x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x


def _sizes(x: Any) -> Sequence[Any]:
    return x.shape if isinstance(x, torch.Tensor) else (x,)


def _constant(example: Any) -> list[Any]:
    """Return the sizes of an example that are constant, and None for each that is not."""
    return [n.node.maybe_as_int() if isinstance(n, torch.SymInt) else n for n in _sizes(example)]
