"""Einsmith: a training compiler that derives gradients, fusion and kernels from formulas of operators and networks."""

from typing import TYPE_CHECKING

from einsmith import export as _export  # first: a module of that name, imported later, would replace it
from einsmith.base import VERSION, late

if TYPE_CHECKING:
    from einsmith import (
        adapters,
        callbacks,
        data,
        distributed,
        functional,
        metrics,
        models,
        nn,
        optim,
        passes,
        quantization,
    )
    from einsmith import frontends as frontends
    from einsmith.api.batching import hessian, vmap
    from einsmith.api.jit import jit
    from einsmith.api.loaded_graph import load_graph
    from einsmith.api.settings import CompileSettings
    from einsmith.api.transforms import check_gradients, grad, interpret, jvp, stop_gradient, value_and_grad, vjp
    from einsmith.base.caches import cache_clear
    from einsmith.base.errors import (
        ArgumentError,
        BoundsError,
        BusyError,
        CheckError,
        CompileError,
        DataError,
        DeviceError,
        DtypeError,
        EinsmithError,
        EinsmithWarning,
        FormulaError,
        GradientError,
        GroupError,
        IndexOutOfRange,
        KindError,
        KnobError,
        LibraryError,
        NonFiniteError,
        OutOfMemoryError,
        SaveError,
        ShapeError,
        TraceError,
        UnknownAttributeError,
        UnknownNameError,
        UnknownOptionError,
        VerifyError,
    )
    from einsmith.export import Library, export, load_library
    from einsmith.lang.op import op
    from einsmith.lang.scalar_function import function
    from einsmith.nn import manual_seed
    from einsmith.quantization.model import quantize
    from einsmith.runtime.thread_count import set_threads, threads
    from einsmith.tracing.builder import (
        abs,
        argmax,
        argmin,
        axes,
        compute,
        cos,
        erf,
        exp,
        floor,
        log,
        max,
        maximum,
        mean,
        min,
        minimum,
        prod,
        relu,
        rsqrt,
        sigmoid,
        sign,
        sin,
        sqrt,
        sum,
        tanh,
        where,
    )
    from einsmith.tracing.constant import constant
    from einsmith.training import TrainStep, TuningSettings, UpdateSettings
    from einsmith.training.checkpoint import load, save

__version__ = VERSION

__all__ = [
    "ArgumentError", "BoundsError", "BusyError", "CheckError", "CompileError", "CompileSettings", "DataError",
    "DeviceError", "DtypeError", "EinsmithError", "EinsmithWarning", "FormulaError", "GradientError", "GroupError",
    "IndexOutOfRange", "KindError", "KnobError", "Library", "LibraryError", "NonFiniteError", "OutOfMemoryError",
    "SaveError", "ShapeError", "TraceError", "TrainStep", "TuningSettings", "UnknownAttributeError",
    "UnknownNameError", "UnknownOptionError", "UpdateSettings", "VerifyError", "abs", "adapters", "argmax", "argmin",
    "axes",
    "cache_clear", "callbacks", "check_gradients", "compute", "constant", "cos", "data", "distributed", "erf", "exp",
    "export", "floor", "function", "functional", "grad", "hessian", "interpret", "jit", "jvp", "load", "load_graph",
    "load_library", "log", "manual_seed", "max", "maximum", "mean", "metrics", "min", "minimum", "models", "nn", "op",
    "optim", "passes", "prod", "quantization", "quantize", "relu", "rsqrt", "save", "set_threads", "sigmoid", "sign",
    "sin", "sqrt", "stop_gradient", "sum", "tanh", "threads", "value_and_grad", "vjp", "vmap", "where",
]  # fmt: skip

_PLACES = {
    "einsmith.api.batching": "hessian vmap",
    "einsmith.base.caches": "cache_clear",
    "einsmith.training.checkpoint": "load save",
    "einsmith.base.errors": "ArgumentError BoundsError BusyError CheckError CompileError DataError DeviceError "
    "DtypeError "
    "EinsmithError EinsmithWarning FormulaError GradientError GroupError IndexOutOfRange KindError KnobError "
    "LibraryError NonFiniteError OutOfMemoryError SaveError ShapeError TraceError UnknownAttributeError "
    "UnknownNameError UnknownOptionError VerifyError",
    "einsmith.export": "Library export load_library",
    "einsmith.tracing.builder": "abs argmax argmin axes compute cos erf exp floor log max maximum mean min minimum "
    "prod relu rsqrt sigmoid sign sin sqrt sum tanh where",
    "einsmith.tracing.constant": "constant",
    "einsmith.lang.op": "op",
    "einsmith.lang.scalar_function": "function",
    "einsmith.api.jit": "jit",
    "einsmith.api.loaded_graph": "load_graph",
    "einsmith.api.settings": "CompileSettings",
    "einsmith.nn": "manual_seed",
    "einsmith.quantization.model": "quantize",
    "einsmith.runtime.thread_count": "set_threads threads",
    "einsmith.training": "TrainStep TuningSettings UpdateSettings",
    "einsmith.api.transforms": "check_gradients grad interpret jvp stop_gradient value_and_grad vjp",
}
"""Public names by the module that defines them; a module is imported when one of its names is first used."""

if not TYPE_CHECKING:
    __getattr__ = late.names_of(
        __name__,
        {name: place for place, names in _PLACES.items() for name in names.split()},
        "einsmith.functional.torch_names",
    )
    del export, _export  # delete the module: the name belongs to the function


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "frontends"})
