"""Einsmith: a training compiler. Operators and networks are formulas; gradients, fusion, kernels are derived."""

from importlib import import_module
from types import ModuleType

from einsmith import callbacks, data, functional, metrics, models, nn, optim
from einsmith.batching import hessian, vmap
from einsmith.caches import cache_clear
from einsmith.checkpoint import load, save
from einsmith.errors import (
    ArgumentError,
    BoundsError,
    BusyError,
    CheckError,
    CompileError,
    DataError,
    DtypeError,
    EinsmithError,
    EinsmithWarning,
    FormulaError,
    GradientError,
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
from einsmith.lang.builder import (
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
from einsmith.lang.op import op
from einsmith.modes import jit
from einsmith.nn import manual_seed
from einsmith.runtime.threads import set_threads
from einsmith.training import TrainStep
from einsmith.transforms import check_gradients, grad, interpret, jvp, stop_gradient, value_and_grad, vjp

__version__ = "0.1.0"

__all__ = [
    "ArgumentError", "BoundsError", "BusyError", "CheckError", "CompileError", "DataError", "DtypeError",
    "EinsmithError", "EinsmithWarning", "FormulaError", "GradientError", "IndexOutOfRange", "KindError", "KnobError",
    "Library", "LibraryError", "NonFiniteError", "OutOfMemoryError", "SaveError", "ShapeError", "TraceError",
    "TrainStep", "UnknownAttributeError", "UnknownNameError", "UnknownOptionError", "VerifyError", "abs", "argmax",
    "argmin", "axes", "cache_clear", "callbacks", "check_gradients", "compute", "cos", "data", "erf", "exp", "export",
    "floor", "functional", "grad", "hessian", "interpret", "jit", "jvp", "load", "load_library", "log", "manual_seed",
    "max", "maximum", "mean", "metrics", "min", "minimum", "models", "nn", "op", "optim", "prod", "relu", "rsqrt",
    "save", "set_threads", "sigmoid", "sign", "sin", "sqrt", "stop_gradient", "sum", "tanh", "value_and_grad", "vjp",
    "vmap", "where",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name == "frontends":  # other libraries are met there: it is imported where it is used
        return import_module("einsmith.frontends")
    raise AttributeError(f"module 'einsmith' has no attribute {name!r}")
