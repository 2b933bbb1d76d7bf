"""Put Einsmith's functions in the place of those of transformers' models, and take them back."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any

import transformers

from einsmith.base import locks
from einsmith.base.errors import ArgumentError
from einsmith.frontends.transformers.table import FUNCTIONS, METHODS

try:
    from transformers.integrations import hub_kernels
except ImportError:  # of older versions
    hub_kernels = None  # type: ignore[assignment]

__all__ = ["SUPPORTED", "disable", "enable"]

SUPPORTED = "5.24"
"""The version of transformers whose table of kernels is known."""
TABLE = "use_kernel_func_from_hub_with_fallback"
"""The decorator of transformers that knows functions by their names."""
LOSSES = "transformers.loss.loss_utils"
"""The module of losses, which METHODS names by its last part."""
_PACKED = "cu_seqlens", "seq_idx"
"""Arguments for sequences that are packed together, which transformers' own functions refuse."""
_LOCK = locks.lock()
_replaced: dict[tuple[Any, str], Any] = {}


def enable() -> list[str]:
    """Put Einsmith's functions in the place of those of models that are imported, and of models imported later. Returns
    the names of the functions that there is one for. Raises ArgumentError for a version of transformers whose table of
    kernels is another one."""
    hub = _hub()
    methods = [*_methods()]
    with _LOCK:
        for module in _holders(hub):
            _replace(module, TABLE, _deciding(getattr(hub, TABLE)))
        for module, name, kernel in [*_imported()]:
            _replace(module, name, _on_cpu(FUNCTIONS[kernel], getattr(module, name)))
        for holder, name, instead in methods:
            _replace(holder, name, instead(getattr(holder, name)))
    return sorted([*FUNCTIONS, *METHODS])


def disable() -> None:
    """Give models their own functions back."""
    with _LOCK:
        while _replaced:
            (holder, name), own = _replaced.popitem()
            setattr(holder, name, own)


def _hub() -> ModuleType:
    if not hasattr(hub_kernels, TABLE):
        raise ArgumentError(
            f"transformers {transformers.__version__} has another table of kernels; {SUPPORTED} is known"
            f" (pip install 'transformers=={SUPPORTED}.*')"
        )
    return hub_kernels


def _replace(holder: Any, name: str, new: Any) -> None:
    if (holder, name) not in _replaced:
        _replaced[holder, name] = getattr(holder, name)
        setattr(holder, name, new)


def _methods() -> Iterator[tuple[Any, str, Callable]]:
    """Yield (module or class, attribute, function that maps the original to its replacement) of each entry of METHODS.

    Entries are skipped whose attribute is absent, as it is where another package of kernels is installed.
    """
    for path, instead in METHODS.items():
        model, *names, last = path.split(".")
        module = LOSSES if LOSSES.endswith(f".{model}") else f"transformers.models.{model}.modeling_{model}"
        holder: Any = importlib.import_module(module)
        for name in names:
            holder = getattr(holder, name, None)
        if hasattr(holder, last):
            yield holder, last, instead


def _holders(hub: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules that models import the table from."""
    for module in (hub, sys.modules["transformers.integrations"]):
        if hasattr(module, TABLE):
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
    """Return f for tensors of the CPU. Calls with other tensors, and with sequences that are packed together, go to the
    fallback; options that f does not know are those of the model around the layer."""
    known = frozenset(inspect.signature(f).parameters)

    @wraps(fallback)
    def chosen(*inputs: Any, **options: Any) -> Any:
        x = inputs[0] if inputs else next(iter(options.values()))
        if x.device.type != "cpu" or any(options.get(name) is not None for name in _PACKED):
            return fallback(*inputs, **options)
        return f(*inputs, **{n: v for n, v in options.items() if n in known})

    return chosen
