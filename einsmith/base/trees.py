"""Flatten and rebuild nested tuples, lists, dicts and None."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from einsmith.base.errors import ArgumentError


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return (leaves in order, structure). Dicts are in the order of insertion of their keys; None has no leaves.
    Raises ArgumentError for a tree that contains itself, or is nested too deeply for Python's stack."""
    try:
        return _flatten(tree)
    except RecursionError:
        raise ArgumentError(
            f"a {type(tree).__name__} that is passed or returned is nested too deeply, or contains itself; pass arrays "
            "in few levels of tuples, lists and dictionaries"
        ) from None


def _flatten(tree: Any) -> tuple[list[Any], Any]:
    if tree is None:
        return [], None
    if not isinstance(tree, (tuple, list, dict)):
        return [tree], "*"
    parts = [_flatten(x) for x in (tree.values() if isinstance(tree, dict) else tree)]
    kind = ("dict", tuple(tree)) if isinstance(tree, dict) else ("tuple" if isinstance(tree, tuple) else "list",)
    return [x for leaves, _ in parts for x in leaves], (*kind, tuple(s for _, s in parts))


def unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """Rebuild a tree from its structure and leaves: the inverse of `flatten`."""
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Any, it) -> Any:
    if structure is None:
        return None
    if structure == "*":
        return next(it)
    items = [_unflatten(s, it) for s in structure[-1]]
    if structure[0] == "dict":
        return dict(zip(structure[1], items, strict=True))
    return tuple(items) if structure[0] == "tuple" else items


def map_tree(f: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with every leaf x replaced by f(x)."""
    leaves, structure = flatten(tree)
    return unflatten(structure, [f(x) for x in leaves])
