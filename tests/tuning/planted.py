"""A pattern whose configurations are faults: each takes y[i] = x[i] * 2.5 and makes code that is quick and wrong."""

from __future__ import annotations

import math
import time
from typing import Any

from einsmith.codegen.loopnest.nest import Builder
from einsmith.kernels.pattern import Cost, Launch, Lowered, Pattern

FAULTS = ("crash", "hang", "hang in lowering", "beside", "nan", "wrong", "raises", "prints")
"""`prints` is no fault: it says something where answers are read."""
SHAPE = (1000, 3)


class Planted(Pattern):
    """See the module. Its predictions make no configuration the choice, and each of them worth a measurement."""

    name = "planted"
    version = 1

    def match(self, kernel: Any) -> bool:
        return kernel.shape == SHAPE and len(kernel.buffers) == 2

    def configs(self, kernel: Any, target: Any) -> list[str]:
        return [*FAULTS]

    def cost(self, kernel: Any, config: str, target: Any) -> Cost:
        return Cost(1e-5, 0.0)

    def lower(self, kernel: Any, config: str, target: Any) -> Lowered:
        if config == "raises":
            raise RuntimeError("out of ideas")
        if config == "hang in lowering":
            time.sleep(1e4)
        if config == "prints":
            print("\x00" * 100, flush=True)
        count = math.prod(SHAPE)
        b = Builder("planted", len(kernel.buffers) + 1)
        x, y = (next(n for n in range(2) if (n in kernel.stages[0].outputs) is made) for made in (False, True))
        with b.loop(0, 1 << 60 if config == "hang" else count // 2 if config == "nan" else count) as loop:
            at = loop.var if config != "hang" else b.const(0)
            factor = b.const(2.5001 if config == "wrong" else 2.5, "f32")
            b.store(b.op("mul", b.load(b.buffers[x], at, "f32"), factor), b.buffers[y], at)
        if config == "crash":
            b.store(b.const(1.0, "f32"), b.buffers[y], 1 << 44)
        if config == "beside":
            b.store(b.const(1.0, "f32"), b.buffers[y], count)
        if config == "nan":
            with b.loop(count // 2, count) as loop:
                b.store(b.const(math.nan, "f32"), b.buffers[y], loop.var)
        return Lowered([Launch(b.finish(), 1)])
