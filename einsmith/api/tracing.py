"""Trace functions of tensors: call them once on symbols of their arguments, which gives a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import environment, locks, recording
from einsmith.base.arguments import describe
from einsmith.base.arrays import to_array
from einsmith.base.captured import CapturedArray
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import DtypeError, TraceError
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.base.trees import flatten, unflatten
from einsmith.driver.derivations import Derivations
from einsmith.ir.nodes import Graph, Leaf, leaf
from einsmith.ir.origins import Origins
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.runtime.memory import Memory, in_memory
from einsmith.tracing import trace
from einsmith.tracing.builder import Value, as_value
from einsmith.tracing.constant import ConstantArray

_STATIC = (str, bool, type(None), ConstantArray)
"""Types of arguments that are static even if they are not named as such: the trace depends on their values."""


@dataclass
class TracedCall:
    """A traced call.

    Attributes:
        graph: the graph of the call, in terms of the memory of the captured objects
        bind: the arrays that hold the values of captured leaves
        live: the captured parameters, buffers and other state, each with the memory that it had during the trace
        structure: the structure into which the results unflatten
        depends: objects, such as modules, whose `trace_key()` decided what was traced
        origins: names of the arguments, and origins of the indices, for messages
    """

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    live: list[tuple[Any, Memory]]
    structure: Any
    depends: list[Any]
    origins: Origins

    @property
    def guard(self) -> locks.Guard | None:
        """The lock of the parameters and the state that the call reads or updates; None where there are none."""
        return locks.Guard(m.guard for _, m in self.live) if self.live else None


class Argument:
    """A leaf of a call's arguments as it enters a trace: an array, a run-time number, or a static value.

    Args:
        x: the leaf as the caller passed it
        static: whether it is static, that is, its value is compiled in; strings, bools, None and functions always are
        name: the name of the argument for messages

    Attributes:
        value: the array, with a number converted to a 0-d array of float64 or int64; a static value as it was passed
        weak: whether it is a Python number, which takes the type of the tensors that it is combined with
        wide: whether it is a Python integer that int32 does not hold
        dtype: the element type; not set for a static value
        shape: the shape; not set for a static value
    """

    __slots__ = ("static", "dtype", "shape", "weak", "wide", "value", "name")

    def __init__(self, x: Any, static: bool, name: str = "array"):
        self.static = static or isinstance(x, _STATIC) or (callable(x) and not hasattr(x, "__array__"))
        self.weak = self.wide = False
        self.name = name
        self.value: Any = x
        if self.static:
            return
        if isinstance(x, (int, float)) and not isinstance(x, np.generic):
            self.weak = True
            self.wide = isinstance(x, int) and not -(2**31) <= x < 2**31
            self.dtype: DType = dt.f64 if isinstance(x, float) else dt.i64
            self.shape: tuple[int, ...] = ()
            if isinstance(x, int) and not -(2**63) <= x < 2**63:
                raise DtypeError(f"the number {x} does not fit int64; pass a float")
            self.value = np.asarray(x, self.dtype.numpy)
        else:
            self.value = to_array(x, name)
            self.dtype, self.shape = dtype_of(self.value), self.value.shape

    @property
    def key(self) -> Any:
        """The leaf's part of a call's cache key: type and shape of an array or number, type and value of a static
        argument. Raises TraceError for a static argument that cannot be hashed."""
        if not self.static:
            return (self.dtype, self.shape, self.weak, self.wide)
        try:
            hash(self.value)
        except TypeError:
            raise TraceError(
                f"a static argument is {describe(self.value)}, which cannot be hashed; pass a tuple, a string "
                "or a number"
            ) from None
        # The text distinguishes 0.0 and -0.0, which are equal, and makes NaN equal to itself.
        return ("static", type(self.value), repr(self.value) if isinstance(self.value, float) else self.value)

    def of_shape(self, shape: tuple[int, ...]) -> Argument:
        """Return an array's symbol of another shape, without values."""
        other = copy(self)
        other.shape, other.value = shape, None
        return other

    def symbol(self) -> tuple[Any, Leaf | None]:
        """Return the value that is passed to the traced function, and the graph's input that it represents; None for a
        static value."""
        if self.static:
            return self.value, None
        x = leaf(self.shape, self.dtype)
        return Value(x, weak=self.weak, wide=self.wide), x


def trace_call(f: Callable, args: tuple, kwargs: dict, static: frozenset = frozenset(), numerics: Numerics = PLAIN):
    """Trace a call of f on arrays without compiling anything; return the graph with everything that a run needs.

    Args:
        f: the function to trace
        args: positional arguments
        kwargs: keyword arguments
        static: the static arguments: positions of those in `args`, names of those in `kwargs`
        numerics: how the graph will be compiled
    """
    arguments = arguments_of(args, kwargs, static, names_of(f))
    return trace_arguments(f, arguments, flatten((list(args), kwargs))[1], numerics)


class _ShapedArgument:
    """An argument of a trace that has a shape and a type, but no values."""

    __slots__ = ("leaf", "name")

    def __init__(self, shape: Sequence[int], dtype: DType, name: str):
        self.leaf, self.name = leaf(shape, dtype), name

    def symbol(self) -> tuple[Value, Leaf]:
        """Return the value that is passed to the traced function, and the graph's input that it represents."""
        return Value(self.leaf), self.leaf


def trace_shapes(
    f: Callable, arguments: Sequence[tuple[Sequence[int], DType]], names: Sequence[str] = ()
) -> TracedCall:
    """Trace f for tensors that have shapes and types, but no values, without compiling anything.

    Args:
        f: the function to trace
        arguments: shape and type of each argument, passed by position
        names: names of the first arguments for messages; the others are named by their positions
    """
    names = [*names, *(f"argument {n}" for n in range(len(names), len(arguments)))]
    symbols = [_ShapedArgument(shape, dtype, name) for (shape, dtype), name in zip(arguments, names, strict=True)]
    return trace_arguments(f, symbols, flatten((symbols, {}))[1])


def names_of(f: Callable) -> tuple[str, ...]:
    """Return the names of f's positional parameters for messages; () where the signature is unknown."""
    if hasattr(f, "argument_names"):
        return tuple(f.argument_names)
    try:
        parameters = inspect.signature(getattr(f, "forward", f)).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def arguments_of(args: tuple, kwargs: dict, static: frozenset, names: Sequence[str] = ()) -> list[Argument]:
    """Return the leaves of a call's arguments, in the order in which the trace takes them.

    Args:
        args: positional arguments
        kwargs: keyword arguments
        static: the static arguments: positions of those in `args`, names of those in `kwargs`
        names: names of positional arguments for messages; further ones are named by their positions
    """
    out: list[Argument] = []
    for key, tree in [*enumerate(args), *kwargs.items()]:
        name = key if isinstance(key, str) else names[key] if key < len(names) else f"argument {key}"
        out += [Argument(x, key in static, name) for x in flatten(tree)[0]]
    return out


def trace_arguments(
    f: Callable, arguments: Sequence[Argument | _ShapedArgument], structure: Any, numerics: Numerics = PLAIN
) -> TracedCall:
    """Trace f on symbols of the arguments and return the graph with everything that a run needs.

    Args:
        f: the function to trace
        arguments: the leaves of the arguments; static ones enter by value
        structure: the structure into which the leaves unflatten, as (args, kwargs)
        numerics: how the graph will be compiled
    """
    t = trace.Trace()
    t.in_full_precision = numerics.in_full
    with trace.compiling(), trace.tracing(t), numerics.allowing(), recording.phase("tracing", of=_name_in_hint(f)):
        symbols = [a.symbol() for a in arguments]
        derivations = Derivations(_name_in_hint(f), [(x.shape, x.dtype) for _, x in symbols if x is not None])
        args, kwargs = unflatten(structure, [s for s, _ in symbols])
        result = f(*args, **kwargs)
        leaves, out_structure = flatten(result)
        outputs = tuple(as_value(x).tensor for x in leaves)
    inputs = [x for _, x in symbols if x is not None]
    updates = tuple((t.capture(o, new.shape, new.dtype), new) for o, new in t.updates.values())
    captured = [x for _, x in t.captured.values()]
    graph = Graph((*inputs, *captured), outputs, updates, index_checks(t.checked))
    derivations.keep(graph)
    graph, bind, live = bound(graph, t.captured.values())
    names = {x: a.name for a, (_, x) in zip(arguments, symbols, strict=True) if x is not None}
    if environment.DUMP.get() is not None:
        names |= _names_of_state(list(t.depends.values()), bind)
    origins = Origins(names, tuple(t.origins), tuple(t.checked))
    return TracedCall(graph, bind, live, out_structure, list(t.depends.values()), origins)


def _names_of_state(modules: Sequence[Any], bind: Mapping[Leaf, np.ndarray]) -> dict[Leaf, str]:
    """Return the names of parameters and buffers among bound leaves; the first of the modules contains the others."""
    state = [x for m in reversed(modules) if hasattr(m, "named_buffers")
             for x in (*m.named_parameters(), *m.named_buffers())]  # fmt: skip
    names = {id(s.memory.physical): n for n, s in state}
    return {x: names[id(a)] for x, a in bind.items() if id(a) in names}


def _name_in_hint(f: Callable) -> str:
    """Return a text that names a function, or the class of an object that is called."""
    named = f if hasattr(f, "__qualname__") else type(f)
    return f"{named.__module__}.{named.__qualname__}"


def bound(
    graph: Graph, captured: Iterable[tuple[Any, Leaf]], keeps_orders: bool = False
) -> tuple[Graph, dict[Leaf, np.ndarray], list[tuple[Any, Memory]]]:
    """Bind a graph to the memory of the objects that its trace captured.

    Args:
        graph: the graph, whose leaves stand for the tensors that users see
        captured: (object, leaf) of each captured object: an array, or a live object with a `memory`, whose values may
            change between runs
        keeps_orders: see `in_memory`

    Returns:
        The graph with leaves for the content of memory, in its layout; the array of each captured leaf; and (object,
        memory) of each live object.
    """
    pairs = list(captured)
    live = [(o, o.memory, x) for o, x in pairs if not isinstance(o, np.ndarray)]
    graph, leaves = in_memory(graph, {x: memory for _, memory, x in live}, keeps_orders)
    memory_of = {x: memory.physical for _, memory, x in live}
    bind = {leaves.get(x, x): memory_of[x] if x in memory_of else o for o, x in pairs}
    bind = {x: a.bind() if isinstance(a, CapturedArray) else a for x, a in bind.items()}
    return graph, bind, [(o, memory) for o, memory, _ in live]
