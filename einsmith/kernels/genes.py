"""Flatten a configuration into genes: named values by which a search compares and changes configurations.

A configuration is a NamedTuple or a frozen dataclass; a value of it may again be one, whose genes are called
`name.gene`, or a tuple of them, as in `pieces.0.mr`. Everything else is a value. Where a value may be one of several
classes, the gene `form` says which.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

FORM = "form"
"""The gene that names a configuration's class."""

Space = dict[str, tuple[Any, ...]]
"""A search space: the possible values of each gene, by its name."""


def members(config: Any) -> dict[str, Any] | None:
    """Return the named parts of a configuration; None for a plain value."""
    if hasattr(config, "_fields"):
        return dict(zip(config._fields, config, strict=True))
    if is_dataclass(config):
        return {f.name: getattr(config, f.name) for f in fields(config)}
    if isinstance(config, tuple) and config and all(hasattr(x, "_fields") or is_dataclass(x) for x in config):
        return {str(n): x for n, x in enumerate(config)}
    return None


def genes(config: Any) -> dict[str, Any]:
    """Return the value of each gene of a configuration, by its name."""
    out: dict[str, Any] = {}
    for name, value in (members(config) or {}).items():
        if members(value) is None:
            out[name] = value
            continue
        if not isinstance(value, tuple) or hasattr(value, "_fields"):
            out[f"{name}.{FORM}"] = type(value).__name__
        out |= {f"{name}.{gene}": v for gene, v in genes(value).items()}
    return out


def add_values(space: Space, values: Space, prefix: str = "") -> None:
    """Add values of genes to a space, under their names with `prefix` in front."""
    for gene, more in values.items():
        name = f"{prefix}{gene}"
        space[name] = tuple(dict.fromkeys((*space.get(name, ()), *more)))


def space_of(configs: Iterable[Any]) -> Space:
    """Return the values that each gene takes in these configurations, in order of occurrence."""
    out: dict[str, dict[Any, None]] = {}
    for config in configs:
        for name, value in genes(config).items():
            out.setdefault(name, {})[value] = None
    return {name: tuple(values) for name, values in out.items()}
