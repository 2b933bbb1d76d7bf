"""Recognize calls whose arguments need no conversion, by their structure, shapes and types alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

_READABLE = 0x101
"""Bits of `ndarray.flags.num` that are set for an array that programs can read in place: C-contiguous and aligned."""
_SETTINGS = (str, bool, type(None))
"""Types of arguments that are static wherever they stand."""


def plain_call_key(
    args: Sequence[Any], kwargs: Mapping[str, Any], static: Collection[int | str], values: list[np.ndarray]
) -> tuple | None:
    """Return a key of a call, which has no hash where a static argument has none; None for a call with arguments that
    are converted.

    Calls of one key run one program. Accepted are arrays that a program can read in place, Python numbers, strings,
    bools, None and functions, in tuples, lists and dicts.

    Args:
        args: the positional arguments
        kwargs: the keyword arguments
        static: positions and names of the arguments that are static
        values: list to which the arrays are appended, and the numbers as 0-d arrays, in the order of the program's
            inputs
    """
    settings: list[Any] = []
    if static:
        for place, x in (*enumerate(args), *kwargs.items()):
            if place in static:
                if isinstance(x, (tuple, list, dict)):  # whose equal numbers may differ in type
                    return None
                # The text distinguishes 0.0 and -0.0, which are equal.
                settings += (place, type(x), repr(x) if isinstance(x, float) else x)
        args = tuple(x for n, x in enumerate(args) if n not in static)
        kwargs = {n: x for n, x in kwargs.items() if n not in static}
    key, named = plain_key(args, values), plain_key(tuple(kwargs.values()), values)
    if key is None or named is None:
        return None
    return key, tuple(kwargs), named, *settings


def is_native(values: Sequence[np.ndarray]) -> bool:
    """Return whether arrays have the machine's order of bytes: those of other orders have keys, and are converted."""
    return all(x.dtype.isnative for x in values)


def plain_key(args: Sequence[Any], values: list[np.ndarray]) -> tuple | None:
    """Return the key of positional arguments alone, none of them static by its position, as `plain_call_key` does."""
    key: list[Any] = [type(args)]
    for x in args:
        kind = type(x)
        if kind is np.ndarray:
            if x.flags.num & _READABLE != _READABLE:
                return None
            key.append(x.shape)
            key.append(x.dtype)
            values.append(x)
        elif kind is float or (kind is int and -(2**63) <= x < 2**63):
            key.append(kind if kind is float or -(2**31) <= x < 2**31 else "a wide integer")
            values.append(np.asarray(x, np.float64 if kind is float else np.int64))
        elif kind is tuple or kind is list or kind is dict:
            try:
                inner = plain_key(tuple(x.values()) if kind is dict else x, values)
            except RecursionError:  # `flatten` raises the error for users
                return None
            if inner is None:
                return None
            key.append((dict, tuple(x), inner) if kind is dict else inner)
        elif kind in _SETTINGS or (callable(x) and not hasattr(x, "__array__")):
            key.append(kind)
            key.append(x)
        else:
            return None
    return tuple(key)
