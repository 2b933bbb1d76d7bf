"""What is run on other machines: launches on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einsmith.codegen.loopnest.nest import Function


@dataclass(frozen=True)
class Job:
    """Launches (function, tasks) on arrays, which are changed in place, and a workspace behind them."""

    launches: Sequence[tuple[Function, int]]
    arrays: Sequence[np.ndarray]
    workspace: int = 0
