"""The kernels that a program becomes for tiles, of which none is compiled or run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from einsmith.api.tracing import trace_call
from einsmith.base.environment import CHECK
from einsmith.driver import compile, registry
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel, Rows
from tests.tiles.backend import Machine, Tiles


@dataclass(frozen=True)
class Uncached(Machine):
    """Whose cache holds nothing."""

    l3: int = 1
    __hash__ = Machine.__hash__


def planned(f: Callable, *shapes: Sequence[int], fused: bool = False) -> list[Kernel]:
    """The kernels of f, each once. fused: rows are fused wherever they can be, and nothing is stored that need not
    be."""
    nothing = CompiledKernel((), 0, 0, "", None, 0, 0)
    with pytest.MonkeyPatch.context() as patched:
        made = Tiles()
        patched.setenv(CHECK.name, "0")
        patched.setattr(registry, "BACKENDS", {**registry.BACKENDS, made.name: made})
        patched.setattr(autoconfig, "OTHERS", {made.name: made.patterns})
        patched.setattr(Tiles, "compile", lambda self, kernels, target: [nothing] * len(kernels))
        if fused:
            patched.setattr(compile, "predicted", lambda kernel, target: float(not isinstance(kernel, Rows)))
        traced = trace_call(f, [np.zeros(s, np.float32) for s in shapes], {}, frozenset())
        target = Uncached(cores=1) if fused else Machine(cores=1)
        run = Executable(traced.graph, traced.bind, 1, target=target, **({"max_stored": 0} if fused else {}))
        return list(dict.fromkeys(c.kernel for c in run.plan.calls))
