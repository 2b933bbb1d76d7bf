"""es.load_library: exported libraries in this process, with Einsmith's errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.arrays import to_array
from einsmith.errors import EinsmithError, LibraryError, SaveError, ShapeError
from einsmith.export import library


class Library(library.Library):
    """An exported library, ready to be called (see `load_library`). Raises SaveError where the folder has none."""

    error, unfit = LibraryError, ShapeError

    def __init__(self, folder: Any, weights: Any = None, threads: int = 0):
        try:
            super().__init__(folder, weights, threads)
        except EinsmithError:
            raise
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise SaveError(f"{folder} is no exported library that can be loaded: {e}") from e

    def _array(self, x: Any, n: int) -> np.ndarray:
        return to_array(x, f"{self.name}: argument {n}")


def load_library(folder: Any, weights: Any = None, threads: int = 0) -> Library:
    """The library that es.export wrote into a folder. weights: a file that it begins with, by default the folder's own;
    threads: 0 for as many as it is made for.

    `step(*batch)`, `evaluate(*batch)`, `predict(*inputs)` of a training step, a call of a function; `state_dict()`,
    `save(path)`, `load(path)`, `get(name)` and `set(name, value)`. Raises LibraryError, with the library's code, where
    the processor or the file will not do, SaveError where the folder is no exported library.
    """
    return Library(folder, weights, threads)
