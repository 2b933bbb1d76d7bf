"""Hold how programs are compiled: the settings that compiled functions and training steps share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from einsmith.base.arguments import Count, check_fields
from einsmith.base.errors import ArgumentError
from einsmith.base.numerics import STORED, Numerics
from einsmith.base.sizes import size_of
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.driver.sizes import check_sizes
from einsmith.schedule.row_clusters import MAX_STORED_BYTES

FULL = "fp32"


@check_fields
@dataclass(frozen=True)
class CompileSettings:
    """How programs are compiled, for `es.TrainStep(..., compilation=)`.

    `TrainStep` also takes each of these settings as a keyword of its own, and `es.jit` all but threads and
    memory_limit. A new value is used from the next step on.

    Attributes:
        precision: "bf16" or "fp16" stores activations and their cotangents, and multiplies, in 16 bits
            (docs/precision.md); weights, sums, norms, losses and the optimizer's state stay in float32. "fp32" (the
            default) rounds nowhere; "tf32" rounds the operands of products on a graphics card. In a training step, a
            dictionary excepts layers by patterns of their names: {"": "bf16", "head": "fp32"}.
        winograd: whether 3x3 convolutions at stride 1 may be computed in Winograd's form, which is faster and rounds
            differently; `kernels.composite.winograd` gives a bound of its error. It mixes the pixels of a tile: an
            infinity or NaN makes all results of the tiles (of at most 4 x 4 results) that read it NaN or infinite, not
            only the 3 x 3 results around it.
        threads: worker threads. None: all cores that the process may use (`es.set_threads`).
        device: "cpu", "cuda" (the first card; in a group, the one of the process's number on its host) or a card by its
            number, such as "cuda:1" (docs/gpu.md). None: as EINSMITH_DEVICE says, by default "cpu". Parameters and
            state stay on a card from step to step; whoever reads them (`data`, `state_dict`, saving, programs on the
            CPU) gets what the last step left.
        sizes: "each" compiles a program for each size of the arguments; "shared" compiles one for all sizes up to a
            capacity, once a second size of a dimension is seen (docs/sizes.md); "auto" does so in training, and
            elsewhere where only the first dimension varies, nothing is stored, and it costs no time, until a size that
            has run 500 times gets its own. None: as EINSMITH_SIZES says, by default "each".
            Programs that are tuned, and those of a group of processes, are for one size each.
        max_stored: largest result between two reductions, as bytes or "32MiB" (the default), that is stored although it
            need not be, because that is predicted to be faster. Larger ones, such as the scores of attention, are used
            up tile by tile, if that is predicted to take at most a quarter more time, and computed again for the
            backward pass, which adds in another order (docs/chains.md). The evaluation of a
            step has the default.
        memory_limit: most memory of a training step, as bytes or "800MB": parameters, state, batch and intermediate
            results. Where intermediate results are too large, some are recomputed before their gradients, first those
            that cost the least time per byte; a step's results stay bitwise the same. Where the limit cannot be kept,
            compilation raises ArgumentError, which says how much is needed. Evaluation has no limit.
        separate_exponentials: whether an exponential of a sum, inside of another sum, may be computed as a product of
            exponentials of its terms, which are fewer, where that is not safe for all numbers: those that are less than
            1e-38 of the largest one become 0 (docs/semantics.md).

    Raises:
        ArgumentError: a size, `precision`, `sizes` or `device` is none of those. The first run raises DeviceError where
            there is no such card; in a group, the `TrainStep` does.
    """

    precision: str | Mapping[str, str] = FULL
    winograd: bool = False
    threads: Count | None = None
    device: str | None = None
    sizes: str | None = None
    max_stored: int | str = MAX_STORED_BYTES
    memory_limit: int | str | None = None
    separate_exponentials: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.precision, str):
            Numerics(precision=self.precision)
        registry.check_device(self.device)
        check_sizes(self.sizes)
        object.__setattr__(self, "max_stored", size_of(self.max_stored, "max_stored", 0))
        if self.memory_limit is not None:
            object.__setattr__(self, "memory_limit", size_of(self.memory_limit, "memory_limit"))

    def numerics_of(self, f: Any) -> Numerics:
        """Return how the programs of a function or a network may round. Raises ArgumentError where layers of a network
        cannot have their precision."""
        if isinstance(self.precision, str):
            return Numerics(self.winograd, self.precision, separate_exponentials=self.separate_exponentials)
        precision, in_full = precision_of_layers(self.precision, f)
        return Numerics(self.winograd, precision, in_full, self.separate_exponentials)

    def target(self, threads: int, ordinal: int = 0) -> Target:
        """Return the machine that programs run on. ordinal: number of the card that "cuda" means."""
        return registry.target_of(registry.check_device(self.device, ordinal), threads, ordinal)


DEFAULTS = CompileSettings()
"""The settings of programs that ask for nothing else."""


def precision_of_layers(precision: Mapping[str, str], model: Any) -> tuple[str, frozenset[int]]:
    """Return a model's precision, and the ids of the parameters of layers in float32.

    Args:
        precision: by pattern of layers' names (as in `fnmatch`), their precision: "" stands for the model, every other
            pattern for layers in float32, with all that they consist of
        model: the network
    Raises:
        ArgumentError: the precision of the model is missing, or unknown; layers are excepted from one that is not of
            16 bits; that of a layer is not float32; or no layer has a name of this pattern.
    """
    rest = dict(precision)
    whole = rest.pop("", None)
    if whole not in STORED:
        raise ArgumentError(
            f"precision={dict(precision)!r}: '' must name the model's own precision, one of {', '.join(STORED)}"
        )
    if rest and whole != FULL and STORED[whole] is None:
        raise ArgumentError(
            f"precision={dict(precision)!r}: layers can be excepted from 16 bits alone, not from {whole!r}, in which "
            f"all products are computed; leave out {', '.join(map(repr, rest))}"
        )
    layers = {path: module for path, module in model.named_modules() if path}
    ids: set[int] = set()
    for pattern, value in rest.items():
        if value != FULL:
            raise ArgumentError(
                f"precision={dict(precision)!r}: the layers {pattern!r} can be in {FULL!r} alone, as an exception from "
                f"{whole!r}"
            )
        matches = [module for path, module in layers.items() if fnmatchcase(path, pattern)]
        if not matches:
            known = ", ".join(list(layers)[:8])
            raise ArgumentError(
                f"precision={dict(precision)!r}: no layer of {type(model).__name__} is named {pattern!r}; its layers "
                f"are {known}{', ...' if len(layers) > 8 else ''}"
            )
        ids |= {id(p) for module in matches for p in module.parameters()}
    return whole, frozenset(ids)
