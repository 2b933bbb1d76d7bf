"""Einsmith's functions in the place of those that transformers looks for in packages of kernels.

Layers of transformers name the functions that they have a kernel for (`chunk_gated_delta_rule` of fla,
`mamba_chunk_scan_combined` of mamba_ssm), and fall back to loops over chunks in PyTorch, as on every CPU. `enable()`
puts formulas there, with their derived gradients, in eager mode and within torch.compile; `disable()` takes them back.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any

import torch
import transformers

import einsmith.functional as F
from einsmith.base import locks
from einsmith.base.errors import ArgumentError
from einsmith.frontends.torch import operator

try:
    from transformers.integrations import hub_kernels
except ImportError:  # of older versions
    hub_kernels = None  # type: ignore[assignment]

SUPPORTED = "5.24"
"""The version of transformers whose table of kernels is known."""
_TABLE = "use_kernel_func_from_hub_with_fallback"
_LOCK = locks.lock()
_replaced: dict[tuple[ModuleType, str], Any] = {}


def enable() -> list[str]:
    """Put Einsmith's functions in the place of those of models that are imported, and of models imported later. Returns
    the names of the functions that there is one for. Raises ArgumentError for a version of transformers whose table of
    kernels is another one."""
    hub = _hub()
    with _LOCK:
        for module in _holders(hub):
            _replace(module, _TABLE, _deciding(getattr(hub, _TABLE)))
        for module, name, kernel in [*_imported()]:
            _replace(module, name, _on_cpu(FUNCTIONS[kernel], getattr(module, name)))
    return sorted(FUNCTIONS)


def disable() -> None:
    """Give models their own functions back."""
    with _LOCK:
        while _replaced:
            (module, name), own = _replaced.popitem()
            setattr(module, name, own)


def _hub() -> ModuleType:
    if not hasattr(hub_kernels, _TABLE):
        raise ArgumentError(
            f"transformers {transformers.__version__} has another table of kernels; {SUPPORTED} is known"
            f" (pip install 'transformers=={SUPPORTED}.*')"
        )
    return hub_kernels


def _replace(module: ModuleType, name: str, new: Any) -> None:
    if (module, name) not in _replaced:
        _replaced[module, name] = getattr(module, name)
        setattr(module, name, new)


def _holders(hub: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules that models import the table from."""
    for module in (hub, sys.modules["transformers.integrations"]):
        if hasattr(module, _TABLE):
            yield module


def _imported() -> Iterator[tuple[ModuleType, str, str]]:
    """Yield (module, name, kernel) of each function of an imported model that Einsmith has."""
    for path, module in [*sys.modules.items()]:
        if path.startswith("transformers.models.") and ".modeling_" in path:
            for name, f in vars(module).items():
                kernel = _kernel_of(f)
                if kernel in FUNCTIONS:
                    yield module, name, kernel


def _kernel_of(f: Any) -> str:
    """Return the name under which the table knows a function of a model; "" for others."""
    if not inspect.isfunction(f) or not hasattr(f, "__wrapped__"):
        return ""
    known = inspect.getclosurevars(f).nonlocals
    return str(known.get("func_name", "")) if "torch_function" in known else ""


def _deciding(table: Callable) -> Callable:
    """Return the table's decorator: models that are imported later have Einsmith's functions at once."""

    @wraps(table)
    def decorator(func_name: str, *arguments: Any, **options: Any) -> Callable:
        own = table(func_name, *arguments, **options)
        if func_name not in FUNCTIONS:
            return own

        def decorated(torch_function: Callable) -> Callable:
            fallback = own(torch_function)
            chosen = _on_cpu(FUNCTIONS[func_name], fallback)

            @wraps(torch_function)
            def f(*inputs: Any, **options: Any) -> Any:
                return (chosen if _replaced else fallback)(*inputs, **options)

            return f

        return decorated

    return decorator


def _on_cpu(f: Callable, fallback: Callable) -> Callable:
    """Return f for tensors of the CPU. Calls with other tensors, such as the places of sequences that are packed
    together, go to the fallback; options that are none are those of the model around the layer."""

    known = frozenset(inspect.signature(f).parameters)

    @wraps(fallback)
    def chosen(x: torch.Tensor, *inputs: Any, **options: Any) -> Any:
        own = {n: v for n, v in options.items() if n in known}
        if x.device.type != "cpu" or any(torch.is_tensor(v) for n, v in options.items() if n not in known):
            return fallback(x, *inputs, **options)
        return f(x, *inputs, **own)

    return chosen


# -- the functions


def _delta_rule(query: Any, key: Any, value: Any, decay: Any, beta: Any, initial: Any, normalizes: bool = False) -> Any:
    if normalizes:
        query, key = (x * F.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (query, key))
    groups = value.shape[2] // key.shape[2]
    if groups > 1:
        query, key = (F.repeat_interleave(x, groups, 2) for x in (query, key))
    return F.gated_delta_rule(query, key, value, decay, beta, initial, output_final_state=True)


def _scan(x: Any, dt: Any, A: Any, B: Any, C: Any, initial: Any) -> Any:
    return F.ssd(x, dt, A, B, C, initial, output_final_state=True)


_DELTA_RULES = {normalizes: operator(_delta_rule, normalizes=normalizes) for normalizes in (False, True)}
_SCAN = operator(_scan)


def chunk_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    chunk_size: int = 64,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return fla's gated delta rule of [B, T, H, K] and [B, T, H, V]; decays g by head or by key. chunk_size is the
    compiler's to choose."""
    del chunk_size
    rows = [x.float() for x in (query, key, value, g, beta)]
    shape = value.shape[0], value.shape[2], key.shape[3], value.shape[3]
    first = rows[2].new_zeros(shape) if initial_state is None else initial_state.float()
    y, last = _DELTA_RULES[bool(use_qk_l2norm_in_kernel)](*rows, first)
    return y.to(query.dtype), last if output_final_state else None


def fused_recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what `chunk_gated_delta_rule` does."""
    options = initial_state, output_final_state, use_qk_l2norm_in_kernel
    return chunk_gated_delta_rule(query, key, value, g, beta, 0, *options)


def mamba_chunk_scan_combined(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int = 64,
    D: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
) -> Any:
    """Return mamba_ssm's scan of inputs [B, T, H, P] in steps dt [B, T, H], with B and C [B, T, G, N]. chunk_size is
    the compiler's to choose."""
    del chunk_size
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = torch.nn.functional.softplus(dt) if dt_softplus else dt
    dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1]).float()
    shape = x.shape[0], x.shape[2], x.shape[3], B.shape[3]
    first = x.new_zeros(shape, dtype=torch.float32) if initial_states is None else initial_states.float()
    y, last = _SCAN(x.float(), dt, A.float(), B.float(), C.float(), first)
    if D is not None:
        y = y + D[..., None] * x.float()
    return (y, last) if return_final_states else y


FUNCTIONS: dict[str, Callable] = {
    "chunk_gated_delta_rule": chunk_gated_delta_rule,
    "fused_recurrent_gated_delta_rule": fused_recurrent_gated_delta_rule,
    "chunk_kda": chunk_gated_delta_rule,
    "fused_recurrent_kda": fused_recurrent_gated_delta_rule,
    "mamba_chunk_scan_combined": mamba_chunk_scan_combined,
}
"""Einsmith's functions by their names in the table of transformers."""
