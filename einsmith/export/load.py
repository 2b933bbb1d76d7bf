"""Load exported libraries into this process, with Einsmith's errors: es.load_library."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsmith.base.arrays import to_array
from einsmith.base.errors import EinsmithError, LibraryError, SaveError, ShapeError
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
            raise SaveError(f"{folder} is not an exported library, or cannot be loaded: {e}") from e

    def _array(self, x: Any, n: int) -> np.ndarray:
        return to_array(x, f"{self.name}: argument {n}")


def load_library(folder: Any, weights: Any = None, threads: int = 0) -> Library:
    """Load the library that es.export wrote into a folder. weights: a file of initial tensors, by default the folder's
    own; threads: number of threads, 0 for as many as the library was exported for.

    The library has `step(*batch)`, `evaluate(*batch)` and `predict(*inputs)` of a training step, or is called as the
    exported function; further `state_dict()`, `save(path)`, `load(path)`, `get(name)` and `set(name, value)`. Raises
    LibraryError, with the library's code, for an unsuitable processor or file, SaveError where the folder is no
    exported library.
    """
    return Library(folder, weights, threads)
