"""Hold what a training step computes: the model, its loss, the optimizer and the settings; read the step's batches.

A loss function returns one scalar, or several with names, of which one or their sum is trained. A loss that is a mean
divides by the count of labels, or by the sum of weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from einsmith.api.settings import CompileSettings
from einsmith.base import environment
from einsmith.base.arguments import check_fields, describe, refuse_torch, refuse_unknown
from einsmith.base.arrays import is_array, to_array
from einsmith.base.dtypes import f16, is_whole
from einsmith.base.errors import ArgumentError, GradientError, KindError, ShapeError
from einsmith.base.numerics import Numerics
from einsmith.ir.analysis.pointwise import pointwise_body
from einsmith.ir.nodes import Apply, Compute, Const, Expr, Leaf, Read, Tensor, postorder, template
from einsmith.tracing import trace
from einsmith.tracing.builder import Value, as_value
from einsmith.training.settings import TuningSettings, UpdateSettings

REPLACED = "model", "loss", "optimizer", "seed"
"""Parts of a definition that a user may replace, besides its settings."""
SETTINGS = {"updates": UpdateSettings, "compilation": CompileSettings, "tuning": TuningSettings}
"""Classes of a definition's settings, by the part that holds them."""
PART_OF = {f.name: part for part, kind in SETTINGS.items() for f in fields(kind)}
"""The part that holds each setting, by the setting's name."""


@check_fields
@dataclass(frozen=True)
class StepDefinition:
    """What a training step computes. A change makes another definition, which the next step uses.

    model, loss, optimizer, seed, updates, compilation, tuning: as in TrainStep; is_alone: neither a group of processes
    nor an order of sums for one is involved; targets: number of targets of a batch, its last arrays.
    """

    model: Any
    loss: Any
    optimizer: Any
    seed: Any = 0
    updates: UpdateSettings = UpdateSettings()
    compilation: CompileSettings = CompileSettings()
    tuning: TuningSettings = TuningSettings()
    is_alone: bool = True
    targets: int = 1

    def __post_init__(self) -> None:
        if not is_whole(self.seed):  # of any size
            raise ArgumentError(f"seed={self.seed!r} must be an integer")

    @property
    def keeps_orders(self) -> bool:
        """True if programs follow the orders in which parameters are stored. A checked program compares with tensors in
        row-major order; processes of a group exchange memory in this order."""
        return self.is_alone and not environment.check_level()

    def changed(self, values: Mapping[str, Any]) -> StepDefinition:
        """Return the definition with other parts and settings, by name. Raises UnknownOptionError for other names."""
        refuse_unknown("TrainStep", values, [*REPLACED, *SETTINGS, *PART_OF])
        new = replace(self, **{n: v for n, v in values.items() if n not in PART_OF})
        for part in SETTINGS:
            settings = {n: v for n, v in values.items() if PART_OF.get(n) == part}
            if settings:
                new = replace(new, **{part: replace(getattr(new, part), **settings)})
        return new

    @property
    def numerics(self) -> Numerics:
        """Rounding rules of the programs. Raises ArgumentError for a precision that cannot be set."""
        out = self.compilation.numerics_of(self.model)
        if out.stored is f16 and not self.is_alone:
            raise ArgumentError(
                "precision='fp16' scales the loss of one process; in a group, and with deterministic=True, use 'bf16'"
            )
        return out

    @property
    def outline(self) -> str:
        """A text that is the same for equal networks: the class, and the names and shapes of the parameters."""
        kind, shapes = type(self.model), [(n, p.shape) for n, p in self.model.named_parameters()]
        return f"{kind.__module__}.{kind.__qualname__} {shapes}"

    def count_samples(self, arrays: Sequence[np.ndarray]) -> int:
        """Return the number of samples of a batch, which is that of its first target."""
        return count_samples(arrays[-self.targets])

    def check_model_and_loss(self) -> None:
        """Check that the model is a network and the loss a function. Raises ArgumentError or KindError."""
        model, loss = self.model, self.loss
        refuse_torch(model, "model")
        if not hasattr(model, "named_parameters") or isinstance(model, type):
            raise ArgumentError(f"model={_show(model)} is not a network; pass an es.nn.Module")
        if isinstance(loss, type):
            raise ArgumentError(f"loss={_show(loss)} is a class; pass one of its objects, as {loss.__name__}()")
        if (getattr(loss, "__module__", None) or "").startswith("torch."):
            raise KindError(
                f"loss={_show(loss)} is PyTorch's; es.functional has losses under PyTorch's names, such as mse_loss"
            )
        if not callable(loss):
            raise KindError(f"loss={_show(loss)} must be a callable")

    def check_optimizer(self) -> None:
        """Check that the optimizer is an update rule. Raises ArgumentError."""
        optimizer = self.optimizer
        if not hasattr(optimizer, "assign") or isinstance(optimizer, type):
            raise ArgumentError(f"optimizer={_show(optimizer)} is no update rule; pass one, as es.optim.SGD(lr=0.1)")


def _show(x: Any) -> str:
    text = repr(x)
    return text if len(text) <= 60 else describe(x)


# -- batches


def targets_of(batch: Sequence[Any]) -> tuple[Any, ...]:
    """Return the targets of a batch: what is last in it or, where that is a tuple of arrays, these. In a batch that is
    itself a list, as PyTorch's DataLoader makes them, the targets may be in a list, too."""
    target = batch[-1]
    is_collection = isinstance(target, (tuple, list) if isinstance(batch, list) else tuple)
    return tuple(target) if is_collection and any(map(is_array, target)) else (target,)


def batch_arrays(batch: Sequence[Any], may_be_empty: bool = False) -> list[np.ndarray]:
    """Return the arrays of a batch (inputs..., target), in order; several targets in a tuple come one after the other.

    Raises ShapeError where there is no target, or, unless the batch may be empty, where an array holds no sample.
    """
    if len(batch) < 2:
        raise ShapeError("a training step takes the model's inputs and a target: step(x, y)")
    if isinstance(batch[-1], (tuple, list)):
        batch = (*batch[:-1], *targets_of(batch))
    arrays = [to_array(x, f"argument {i}") for i, x in enumerate(batch)]
    for i, a in enumerate(arrays):
        if a.ndim and a.shape[0] == 0 and not may_be_empty:
            raise ShapeError(f"argument {i} has shape {a.shape}: a batch needs at least one sample")
    return arrays


def count_samples(target: np.ndarray) -> int:
    """Return the number of samples that a target has: its first extent, or 1 where it is 0-d."""
    return len(target) if target.ndim else 1


_ANY = object()
"""Of a part in which the batch has no part, such as a decay of weights: it is the same in a mean over any batches."""


def check_takes(f: Callable, what: str, targets: Sequence[Any]) -> None:
    """Check that a loss or a metric takes an output and these targets. Raises ArgumentError."""
    try:
        inspect.signature(f).bind(None, *targets)
    except ValueError:  # it has no signature
        return
    except TypeError as e:
        count = f"{len(targets)} targets" if len(targets) > 1 else "one target"
        raise ArgumentError(
            f"a batch has {count}, so {what} is called with (output, {', '.join('target' for _ in targets)}), which "
            f"{getattr(f, '__name__', type(f).__name__)} does not take: {e}"
        ) from None


def traced_losses(loss: Callable, output: Any, targets: Sequence[Any], trained: str) -> tuple[Value, dict[str, Value]]:
    """Return (the trained scalar, all scalars by name where there are several) of `loss(output, *targets)`. A tuple's
    are loss_0, loss_1, ...

    trained: "first" or "sum". Raises ArgumentError if the loss does not take this number of targets, GradientError if a
    loss is not a float scalar.
    """
    check_takes(loss, "the loss", targets)
    result = loss(output, *targets)
    if isinstance(result, Mapping):
        parts = {str(n): as_value(v) for n, v in result.items()}
    elif isinstance(result, (tuple, list)):
        parts = {f"loss_{n}": as_value(v) for n, v in enumerate(result)}
    else:
        parts = {"": as_value(result)}
    if not parts:
        raise GradientError("the loss function returned an empty collection; return at least one loss")
    for name, v in parts.items():
        if v.shape != () or not v.dtype.is_float:
            which = f"the loss {name!r}" if name else "the loss"
            raise GradientError(f"{which} has type {v.dtype} and shape {v.shape}; it must be a float scalar")
    first = next(iter(parts.values()))
    total = reduce(lambda a, b: a + b, parts.values()) if trained == "sum" else first
    return total, {} if "" in parts else parts


def find_divisor(loss: Value) -> Value | None:
    """Return the tensor by which a traced loss divides a sum over the batch; None where it is a mean over samples, or
    a sum of means that divide by different tensors.

    A mean over several batches weighs the mean of each by this tensor, which depends on no trained parameter. The loss
    is one quotient, times numbers, plus what does not depend on the batch. The trace is the current one."""
    current = trace.current_trace()
    assert current is not None
    captured = {x: o for o, x in current.captured.values()}
    divisor = _Search(captured).of_tensor(loss.tensor)
    return Value(divisor) if isinstance(divisor, Tensor) else None


class _Search:
    """The search in one trace. captured: the object of each leaf that is not part of the batch."""

    def __init__(self, captured: dict[Leaf, Any]):
        self._captured = captured

    def of_tensor(self, t: Tensor) -> Any:
        """Return the divisor of a 0-d tensor, None or _ANY."""
        leaves = [x for x in postorder([t]) if isinstance(x, Leaf)]
        if all(x in self._captured for x in leaves):
            return _ANY
        body = pointwise_body(t.template) if isinstance(t, Compute) and t.shape == () else None
        return None if body is None else self._of(body, t)

    def _of(self, e: Expr, t: Any) -> Any:
        """Return the divisor of an expression in the template of a tensor."""
        if isinstance(e, Const):
            return _ANY
        if isinstance(e, Read):
            return self.of_tensor(t.args[e.slot]) if e.index == () else None
        if not isinstance(e, Apply):
            return None
        if e.fn in ("neg", "cast"):
            return self._of(e.args[0], t)
        if e.fn not in ("add", "sub", "mul", "div"):
            return None
        a, b = (self._of(x, t) for x in e.args)
        if e.fn == "div" and b is not _ANY:
            return self._divisor(e.args[1], t) if a is None else None
        if a is _ANY or b is _ANY or a is b:
            return b if a is _ANY else a if b is _ANY or e.fn in ("add", "sub") else None
        return None

    def _divisor(self, e: Expr, t: Any) -> Tensor | None:
        """Return an expression as a tensor; None where it depends on a trained parameter."""
        while isinstance(e, Apply) and e.fn == "cast":
            e = e.args[0]
        if isinstance(e, Read):
            tensor: Tensor = t.args[e.slot]
        else:
            tensor = Compute(template((), t.template.params, e), t.args)
        leaves = [x for x in postorder([tensor]) if isinstance(x, Leaf)]
        is_trained = any(getattr(self._captured.get(x), "requires_grad", False) for x in leaves)
        return None if is_trained else tensor
