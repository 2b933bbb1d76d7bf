"""Register operators with PyTorch: backward, forward mode and vmap, each by a call of the operator, and shapes.

A registered function takes tensors and a program, which is a text that names the computation (see `torch_program`). A
derivative or a batch of a program is a program, so everything composes to any order, inside torch.func too. The
autograd kernel is one function for all operators; it works at one level of torch.func's, which nests them.
"""

from __future__ import annotations

import hashlib
import itertools
import keyword
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.amp.autocast_mode import _cast
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from einsmith.frontends import torch_device
from einsmith.frontends.torch_program import Program, derive
from einsmith.lang.op import Operator

Kind = tuple[tuple[int, ...], torch.dtype]


class Definition(Protocol):
    """The interface of a registered operator: it runs a program on tensors and tells the shapes of its results."""

    any_op: Any

    def run(self, program: Program, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a program on tensors and return its results."""

    def shapes(self, program: Program, tensors: Sequence[torch.Tensor]) -> list[Kind]:
        """Return shape and type of each result of a program on tensors, without running it."""


_LIBRARY = torch.library.Library("einsmith", "FRAGMENT")
_AUTOCAST = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


def is_wanted(node: Any) -> bool:
    """Return whether the running backward pass executes an autograd node, or returns its gradient."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient torch.autograd.grad returns; PyTorch says no of others
        return True


class _Derived(_SingleLevelFunction):
    """A call of an operator at one level of differentiation: (definition, call below autograd, program, tensors)."""

    @staticmethod
    def forward(ctx: Any, definition: Definition, call: Callable, program: Program, *tensors: torch.Tensor) -> tuple:
        # Autograd is off in here; the levels of torch.func below this one have their own.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            out = call()
        ctx.definition, ctx.program = definition, program
        ctx.outputs = [(o.shape, o.dtype) for o in out]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(o for o in out if not o.is_floating_point()))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple:
        inputs = ctx.saved_tensors
        nodes = [node for node, _ in ctx.next_functions]
        wrt = [i for i, needed in enumerate(ctx.needs_input_grad[3:]) if needed and is_wanted(nodes[i])]
        cotangents = [
            inputs[0].new_zeros(shape, dtype=dtype) if g is None else g
            for g, (shape, dtype) in zip(grads, ctx.outputs, strict=True)
            if dtype.is_floating_point
        ]
        gradients = ctx.definition.any_op([*inputs, *cotangents], derive(ctx.program, len(inputs), ":", wrt))
        all_ = dict(zip(wrt, gradients, strict=True))
        return None, None, None, *(all_.get(i) for i in range(len(inputs)))

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple:
        # Forward mode is off in here, but the tangents may move at a level below; at this one nothing else does.
        with forward_ad._set_fwd_grad_enabled(True):
            inputs = [forward_ad.unpack_dual(x, level=0).primal for x in ctx.saved_tensors]
            moving = {i: t for i, t in enumerate(tangents[3:]) if t is not None}
            program = derive(ctx.program, len(inputs), ">", list(moving))
            moved = iter(ctx.definition.any_op([*inputs, *moving.values()], program))
        return tuple(next(moved) if dtype.is_floating_point else None for _, dtype in ctx.outputs)


def _is_differentiated(
    definition: Definition, call: Callable, program: Program, tensors: Sequence[torch.Tensor]
) -> tuple:
    allowed = torch._C._functorch.get_single_level_autograd_function_allowed()
    torch._C._functorch.set_single_level_autograd_function_allowed(True)
    try:
        return _Derived.apply(definition, call, program, *tensors)
    finally:
        torch._C._functorch.set_single_level_autograd_function_allowed(allowed)


def register(
    qualname: str, schema: str, definition: Definition, pack: Callable[[Sequence], Any], unpack: Callable[..., tuple]
) -> Any:
    """Register a definition and return its torch operator.

    unpack: arguments of a call -> (tensors, program); pack: list of outputs -> result of a call.
    """
    name = qualname.removeprefix("einsmith::")
    _LIBRARY.define(name + schema, tags=_TAGS)
    op = getattr(torch.ops.einsmith, name).default

    def compute(*arguments: Any) -> Any:
        tensors, program = unpack(*arguments)
        return pack(definition.run(program, tensors))

    def fake(*arguments: Any) -> Any:
        tensors, program = unpack(*arguments)
        device = torch_device.common(tensors)
        like = next(x for x in tensors if torch_device.device_of(x) == device)  # it may not be the first, a number
        return pack([like.new_empty(s, dtype=t) for s, t in definition.shapes(program, tensors)])

    def autograd(keyset: Any, *arguments: Any) -> Any:
        tensors, program = unpack(*arguments)

        def call() -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return op.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

        if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)) and not torch_device.have_tangents(
            tensors
        ):
            return call()

        def several() -> tuple:
            out = call()
            return (out,) if isinstance(out, torch.Tensor) else tuple(out)

        return pack(_is_differentiated(definition, several, program, tensors))

    def batched(info: Any, dims: tuple, *arguments: Any) -> tuple:
        tensors, program = unpack(*arguments)
        where = unpack(*dims)[0]
        at = [i for i, d in enumerate(where) if d is not None]
        first = [x if d is None else x.movedim(d, 0) for x, d in zip(tensors, where, strict=True)]
        out = definition.any_op(first, derive(program, len(first), "*", at))
        return pack(out), pack([0] * len(out))

    def in_single(device: str, *arguments: Any) -> Any:
        """Run under autocast, with floats of fewer bits as float32. torch.library can register this only after 2.6."""
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST[device])):
            return op(*_cast(arguments, device, torch.float32))

    def batched_grads(*arguments: Any) -> Any:
        """Run under torch.autograd's own vmap (is_grads_batched, vectorize, gradcheck).

        Its batched tensors and levels are not torch.func's: remove the innermost level from the tensors and add it to
        the results.
        """
        tensors, program = unpack(*arguments)
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        at = [i for i, x in enumerate(tensors) if torch._C._functorch.is_legacy_batchedtensor(x)]
        first = [torch._remove_batch_dim(x, level, 1, 0) if i in at else x for i, x in enumerate(tensors)]
        torch._C._vmapmode_decrement_nesting()
        try:
            out = definition.any_op(first, derive(program, len(first), "*", at))
        finally:
            torch._C._vmapmode_increment_nesting()
        return pack([torch._add_batch_dim(o, 0, level) for o in out])

    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    _LIBRARY.impl(name, batched_grads, "Batched")
    torch.library.register_fake(qualname, fake, lib=_LIBRARY)
    _LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    torch.library.register_vmap(qualname, batched, lib=_LIBRARY)
    for device, key in _AUTOCAST.items():
        op.py_impl(key)(partial(in_single, device))
        _LIBRARY.impl(name, partial(in_single, device), key.name)
    return op


# ------------------------------------------------------------------------------------------------------- names

_COUNT = itertools.count()


def name_of(f: Callable, params: dict[str, Any]) -> str:
    """Return the name under which a callable is registered.

    A formula's name identifies its content, so that graphs which torch keeps on disk find the formula in a later
    process. Another callable's content is unknown, so its name is new in every process.
    """
    base = re.sub(r"\W", "_", spoken_name(f), flags=re.ASCII)
    if isinstance(f, Operator):
        p, values = f.program, [sorted((n, _exact(v)) for n, v in d.items()) for d in (f.defaults, params)]
        content = repr((p.text, sorted(p.extents.items()), f.name, f.options, f.inputs, values))
    else:
        content = f"{os.getpid()} {os.urandom(8).hex()} {next(_COUNT)}"
    return f"einsmith::{base.strip('_') or 'operator'}_{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _exact(value: Any) -> tuple[str, str]:
    """Return a type and a text that tell a parameter's value from every other; NumPy's own texts are rounded."""
    is_numpy = isinstance(value, (np.ndarray, np.generic))
    return (str(value.dtype), repr(value.tolist())) if is_numpy else (type(value).__name__, repr(value))


def spoken_name(f: Callable) -> str:
    """Return the name of f for messages."""
    return f.name if isinstance(f, Operator) else getattr(f, "__name__", type(f).__name__)


def argument_name(name: str) -> str:
    """Return a name that torch's schemas accept: ASCII, no keyword, not the first argument of a method."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"{plain}_" if keyword.iskeyword(plain) or plain in ("self", "out", "Tensor") else plain
