"""Describe what a back end compiles a kernel to, as far as plans and programs need to know it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einsmith.schedule.kernel import Beyond


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel compiled by a back end.

    Attributes:
        launches: (code, tasks, once) of each launch (see kernels.pattern.Launch); `code` is what the back end's
            programs run
        scratch, workspace, nbytes: bytes of a thread's scratch, of the shared workspace, and of all the code
        decision: the decision it follows (`decisions`), empty for the model's choice
        tuned: whether measuring found the decision
        beyond: what it does beyond its limit, if it has one
        unfollowed: a sentence on a tuning record that cannot be followed, so that the model's choice stands; else empty
        rounding: factor by which its products round more than arithmetic of their types
    """

    launches: tuple[tuple[Any, int, bool], ...]
    scratch: int
    workspace: int
    pattern: str
    config: str
    seconds: float  # predicted
    nbytes: int
    decision: str = ""
    tuned: bool = False
    unfollowed: str = ""
    beyond: Beyond = Beyond.COMPUTED
    rounding: float = 1.0
