"""List the special functions that are written out for lanes, by the IR's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einsmith.codegen.vecmath import polynomials, trigonometric

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": polynomials.exp,
    "log": polynomials.log,
    "tanh": polynomials.tanh,
    "sigmoid": polynomials.sigmoid,
    "erf": polynomials.erf,
    "pow": polynomials.pow,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
}
"""Functions emitted as many instructions; each takes a `polynomials.Arith` and the operands."""
