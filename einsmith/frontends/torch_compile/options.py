"""Hold the options of the backend, and say what runs in PyTorch."""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import dataclass, field

from einsmith.base.caches import Once
from einsmith.base.errors import EinsmithWarning, TraceError
from einsmith.cost.facts import CPU

_SAID = Once("operators that run in PyTorch")


@dataclass(frozen=True)
class Options:
    """Options of the backend.

    fallback: "warn" or "error", for operators that run in PyTorch; fallback_random: whether PyTorch draws random
    numbers; winograd, separate_exponentials: as in `es.jit`; sizes: "each", where a graph of dynamic sizes has a
    program for each combination, "shared", where it has one for sizes up to a capacity, or "auto", where sizes that are
    used often have one, too; None: as `torch_sizes.choose` says. frozen: whether parameters that do not train are
    constants of programs, which "bf16" and "int8" keep in fewer bits (`frozen.py`). `device`: where programs run
    (`torch_device.device_of`).
    """

    fallback: str = "warn"
    fallback_random: bool = False
    winograd: bool = False
    separate_exponentials: bool = False
    sizes: str | None = None
    frozen: bool | str = False
    device: str = field(default=CPU, init=False)

    def on(self, device: str) -> Options:
        """Return these options for programs that run on a device."""
        out = copy(self)
        object.__setattr__(out, "device", device)
        return out

    def say(self, what: str, why: str, line: str) -> None:
        """Warn, once for each `what` and `line`, that it runs in PyTorch; raise TraceError if fallback is "error"."""
        text = f"{what} runs in PyTorch: {why}" + (f"\n    {line}" if line else "")
        if self.fallback == "error":
            raise TraceError(text)
        if _SAID((what, line)):
            warnings.warn(f"einsmith: {text}", EinsmithWarning, stacklevel=2)
