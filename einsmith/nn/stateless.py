"""Call a module with other tensors in the place of its parameters: `functional_call`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einsmith.base.arguments import check_arguments, show
from einsmith.base.errors import ShapeError, UnknownNameError
from einsmith.nn.module import Module
from einsmith.nn.parameter import substituted
from einsmith.tracing import trace
from einsmith.tracing.builder import as_value
from einsmith.tracing.calls import in_trace


@check_arguments
def functional_call(module: Module, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Call `module(*args, **kwargs)` with some parameters and buffers replaced by other tensors.

    `es.grad(lambda p: loss(es.nn.functional_call(model, p, x)))(params)` gives gradients by name.

    Args:
        module: the module to call; it is not changed
        params: the replacements by path; parameters and buffers without one keep the module's own values
        args: positional arguments of `forward`
        kwargs: keyword arguments of `forward`

    Raises:
        UnknownNameError: the module has no parameter or buffer at a path.
        ShapeError: a replacement has another shape.
    """
    stored = {n: v for t in ("_parameters", "_buffers") for n, v in module._named_entries(t, once=False)}
    unknown = [n for n in params if n not in stored]
    if unknown:
        listed = ", ".join(map(repr, unknown))
        raise UnknownNameError(f"{type(module).__name__} has no parameter or buffer named {listed}")
    for name, value in params.items():
        shape = getattr(value, "shape", None)
        if shape is None or tuple(shape) != stored[name].shape:
            raise ShapeError(f"{name!r} has shape {stored[name].shape}; its replacement {show(value)} needs the same")
    if not in_trace((dict(params), *args), kwargs):
        return trace.run_arrays(_functional_of(module), (dict(params), *args), kwargs)
    values = {id(stored[name]): as_value(value) for name, value in params.items()}
    token = substituted.set({**substituted.get(), **values})
    try:
        return module(*args, **kwargs)
    finally:
        substituted.reset(token)


class _Functional:
    """A function of (params, *args, **kwargs) that is `functional_call` of one module."""

    def __init__(self, module: Module):
        self.module = module

    def __call__(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.module, params, *args, **kwargs)


def _functional_of(module: Module) -> _Functional:
    """Return the `_Functional` of a module, created at its first use. The programs compiled for the function live as
    long as the function, and the module keeps the function in an attribute."""
    function = module.__dict__.get("_functional")
    if function is None or function.module is not module:  # a copied module has the original's function
        function = _Functional(module)
        object.__setattr__(module, "_functional", function)
    return function
