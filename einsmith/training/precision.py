"""Read the precision of a model's layers by their names."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from einsmith.base.errors import ArgumentError
from einsmith.base.numerics import STORED

FULL = "fp32"


def precision_of_layers(precision: Mapping[str, str], model: Any) -> tuple[str, frozenset[int]]:
    """Return a model's precision, and the ids of the parameters of layers in float32.

    Args:
        precision: by pattern of layers' names (as in `fnmatch`), their precision: "" stands for the model, every other
            pattern for layers in float32, with all that they consist of
        model: the network
    Raises:
        ArgumentError: the precision of the model is missing, or unknown; layers are excepted from one that is not of
            16 bits; that of a layer is not float32; or no layer has a name of this pattern.
    """
    rest = dict(precision)
    whole = rest.pop("", None)
    if whole not in STORED:
        raise ArgumentError(
            f"precision={dict(precision)!r}: '' must name the model's own precision, one of {', '.join(STORED)}"
        )
    if rest and whole != FULL and STORED[whole] is None:
        raise ArgumentError(
            f"precision={dict(precision)!r}: layers can be excepted from 16 bits alone, not from {whole!r}, in which "
            f"all products are computed; leave out {', '.join(map(repr, rest))}"
        )
    layers = {path: module for path, module in model.named_modules() if path}
    ids: set[int] = set()
    for pattern, value in rest.items():
        if value != FULL:
            raise ArgumentError(
                f"precision={dict(precision)!r}: the layers {pattern!r} can be in {FULL!r} alone, as an exception from "
                f"{whole!r}"
            )
        matches = [module for path, module in layers.items() if fnmatchcase(path, pattern)]
        if not matches:
            known = ", ".join(list(layers)[:8])
            raise ArgumentError(
                f"precision={dict(precision)!r}: no layer of {type(model).__name__} is named {pattern!r}; its layers "
                f"are {known}{', ...' if len(layers) > 8 else ''}"
            )
        ids |= {id(p) for module in matches for p in module.parameters()}
    return whole, frozenset(ids)
