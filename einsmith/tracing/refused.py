"""List the names of PyTorch that Einsmith does not have: why, and what to use instead. docs/torch.md has the table."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from einsmith.base.errors import UnknownAttributeError

_DEPENDS = "the shape of the result depends on values, which are not known while a program is traced"
_FUNCTIONS = "gradients are those of functions"
_STRIDES = "traced tensors have no strides"
_IN_PLACE = "tensors are not changed in place"
_LAZY = "the shapes of a layer's parameters are known when it is made"
_INSIDE = "internal to PyTorch"
_DEPRECATED = "deprecated in PyTorch"
_NARROW = "products of narrow types with scales run on CUDA alone"
_GRAD = "es.grad(f), es.vjp(f, ...) or es.TrainStep"

REFUSED: dict[str, tuple[str, str]] = {
    "torch.Tensor.argwhere": (_DEPENDS, "where(condition, a, b)"),
    "torch.Tensor.as_strided": (_STRIDES, "slices, reshape, unfold or es.compute"),
    "torch.Tensor.backward": (_FUNCTIONS, _GRAD),
    "torch.Tensor.cuda": ("tensors are on the CPU", "the tensor as it is"),
    "torch.Tensor.data": ("a traced tensor is a value without storage", "detach()"),
    "torch.Tensor.grad": (_FUNCTIONS, _GRAD),
    "torch.Tensor.is_contiguous": (_STRIDES, "view, which takes every tensor"),
    "torch.Tensor.masked_select": (_DEPENDS, "where(mask, x, 0)"),
    "torch.Tensor.new_empty": ("an uninitialized tensor has no formula", "new_zeros"),
    "torch.Tensor.nonzero": (_DEPENDS, "where(condition, a, b)"),
    "torch.Tensor.numpy": ("the elements exist only when the program runs", "the traced function's result"),
    "torch.Tensor.requires_grad": (_FUNCTIONS, "es.grad(f, argnums=...)"),
    "torch.Tensor.stride": (_STRIDES, "shape"),
    "torch.Tensor.tolist": ("the elements exist only when the program runs", "the traced function's result"),
    "torch.Tensor.unique": (_DEPENDS, "NumPy, before the call"),
    "torch.autograd": (_FUNCTIONS, _GRAD),
    "torch.compile": ("everything is compiled at its first call", "es.jit(f) for functions of arrays"),
    "torch.cuda": ("tensors are on the CPU", "no call at all"),
    "torch.empty": ("an uninitialized tensor has no formula", "zeros"),
    "torch.enable_grad": (_FUNCTIONS, "no context"),
    "torch.from_numpy": ("arrays are arguments as they are", "as_tensor"),
    "torch.inference_mode": (_FUNCTIONS, "no context around calls, x.detach() inside them"),
    "torch.masked_select": (_DEPENDS, "where(mask, x, 0)"),
    "torch.no_grad": (_FUNCTIONS, "no context around calls, x.detach() inside them"),
    "torch.nonzero": (_DEPENDS, "where(condition, a, b)"),
    "torch.unique": (_DEPENDS, "NumPy, before the call"),
    "torch.nn.Container": (_DEPRECATED, "Module"),
    "torch.nn.CrossMapLRN2d": (_DEPRECATED, "LocalResponseNorm"),
    "torch.nn.DataParallel": ("its threads share one interpreter", "es.TrainStep(..., group=es.distributed.init())"),
    **{
        f"torch.nn.Lazy{name}": (_LAZY, f"{name} with its number of {what}")
        for names, what in (
            ("BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d", "features"),
            ("Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d", "input channels"),
            ("Linear", "input features"),
        )
        for name in names.split()
    },
    "torch.nn.LinearCrossEntropyOptions": ("how a product is cut is chosen by the cost model", "no options"),
    "torch.nn.NLLLoss2d": (_DEPRECATED, "NLLLoss"),
    "torch.nn.RNNBase": (_INSIDE, "RNN, LSTM or GRU; recurrences of your own are formulas (docs/recurrences.md)"),
    "torch.nn.RNNCellBase": (_INSIDE, "RNNCell, LSTMCell, GRUCell, or Module"),
    "torch.nn.UninitializedBuffer": (_LAZY, "Buffer"),
    "torch.nn.UninitializedParameter": (_LAZY, "Parameter"),
    "torch.nn.common_types": (_INSIDE, "int and tuple in annotations"),
    "torch.nn.factory_kwargs": (_INSIDE, "the keyword dtype of layers"),
    "torch.nn.grad": ("gradients of convolutions are derived", "es.grad or es.vjp of conv1d, conv2d, conv3d"),
    "torch.nn.intrinsic": ("fusion is the compiler's", "es.quantize"),
    "torch.nn.modules": (_INSIDE, "the layers of einsmith.nn"),
    "torch.nn.parallel": ("processes exchange gradients inside the step", "es.TrainStep(..., group=...)"),
    "torch.nn.qat": ("layers are prepared by a function", "es.quantization.prepare_qat"),
    "torch.nn.quantizable": ("layers are prepared by a function", "es.quantize"),
    "torch.nn.quantized": ("layers are converted by a function", "es.quantize"),
    "torch.nn.utils": (
        "gradients and parameters are changed inside the step",
        "es.TrainStep(..., clip_grad_norm=...); for a weight's parametrization a Module that computes it",
    ),
    **{
        f"torch.nn.functional.{name}_": (_IN_PLACE, f"x = {name}(x)")
        for name in "celu elu hardtanh leaky_relu relu rrelu selu threshold".split()
    },
    **{
        f"torch.nn.functional.{name}_with_indices": (_INSIDE, f"{name}(..., return_indices=True)")
        for name in (
            "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
            "max_pool1d max_pool2d max_pool3d"
        ).split()
    },
    "torch.nn.functional.ScalingType": (_NARROW, "es.quantize"),
    "torch.nn.functional.SwizzleType": (_NARROW, "es.quantize"),
    "torch.nn.functional.Tensor": ("a class, no function", "es.Tensor"),
    "torch.nn.functional.assert_int_or_pair": (_INSIDE, "isinstance"),
    "torch.nn.functional.boolean_dispatch": (_INSIDE, "if"),
    "torch.nn.functional.grad": ("gradients of convolutions are derived", "es.grad or es.vjp"),
    "torch.nn.functional.grouped_mm": (
        "groups of rows are formulas",
        "es.op with a product over ragged rows (docs/segments.md)",
    ),
    "torch.nn.functional.handle_torch_function": (_INSIDE, "functions of einsmith.functional"),
    "torch.nn.functional.has_torch_function": (_INSIDE, "functions of einsmith.functional"),
    "torch.nn.functional.has_torch_function_unary": (_INSIDE, "functions of einsmith.functional"),
    "torch.nn.functional.has_torch_function_variadic": (_INSIDE, "functions of einsmith.functional"),
    "torch.nn.functional.native_channel_shuffle": (_INSIDE, "channel_shuffle"),
    "torch.nn.functional.scaled_grouped_mm": (_NARROW, "es.quantize"),
    "torch.nn.functional.scaled_mm": (_NARROW, "es.quantize"),
}
"""Names that are not there: (the reason, what to use instead)."""


def refusal(places: Iterable[str], name: str) -> str:
    """Return why a name is not in the first of PyTorch's modules or classes that lists it, and what to use; else ""."""
    for place in places:
        if f"{place}.{name}" in REFUSED:
            reason, instead = REFUSED[f"{place}.{name}"]
            return f": {reason}; use {instead}"
    return ""


def missing_name(module: str, places: Iterable[str], name: str, known: Iterable[str]) -> UnknownAttributeError:
    """Return the error for a name that a module of Einsmith does not have.

    Args:
        module: the module's name.
        places: the modules of PyTorch whose names it offers.
        name: the missing name.
        known: the module's names, from which a similar one is suggested.
    """
    hint = refusal(places, name)
    if not hint and (near := get_close_matches(name, known, 1)):
        hint = f"; did you mean {near[0]}?"
    return UnknownAttributeError(f"module {module!r} has no attribute {name!r}{hint}")
