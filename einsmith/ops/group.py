"""Sum tensors over the processes of a group, in the middle of a training step."""

from __future__ import annotations

from typing import Any

from einsmith.base.errors import ArgumentError
from einsmith.ir.nodes import GroupSum
from einsmith.ops.common import tensor
from einsmith.ops.operator import operator
from einsmith.tracing.builder import Value
from einsmith.tracing.trace import current_trace


def sums_over_group() -> bool:
    """Return whether the step that is being traced trains in a group of several processes.

    Raises ArgumentError in a step with `deterministic=True`."""
    trace = current_trace()
    if trace is None or trace.sums_over_group is False:
        return False
    if trace.sums_over_group is None:
        raise ArgumentError(
            "deterministic=True computes the parts of a batch one after the other, which cannot share sums; use "
            "BatchNorm instead of SyncBatchNorm, and no group_sum"
        )
    return True


@operator()
def group_sum(input: Any) -> Value:
    """Return the sum of a tensor over all processes of the group that train together, in a training step; elsewhere,
    and in a process that is alone, the tensor itself.

    All processes get the sum in one message, while the step runs. Its gradient is the sum of the processes' gradients,
    weighted by their samples. The tensor should be small, as are the statistics of a layer.
    """
    x = tensor(input, "group_sum", "input", kind="float")
    if not sums_over_group():
        return x
    wide = x.astype(x.dtype.arithmetic.name)
    return Value(GroupSum(wide.tensor, False)).astype(x.dtype.name)  # type: ignore[arg-type]
