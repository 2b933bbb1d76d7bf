"""Run functions of tensors: jit, grad, value_and_grad, vjp, interpret, check_gradients (API "Functions of tensors").

A callable given arrays is traced with symbolic tensors, compiled for their shapes and types, run, and cached.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.base import html, locks
from einsmith.base.arguments import check_arguments, describe, show, signature_of
from einsmith.base.arrays import to_array
from einsmith.base.caches import Cache, Entry, tick
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.errors import ArgumentError, DtypeError, KindError, TraceError
from einsmith.base.trees import flatten, unflatten
from einsmith.driver.executable import PROGRAMS, Executable
from einsmith.ir.nodes import Graph, Leaf, leaf
from einsmith.ir.origins import Origins
from einsmith.lang import trace
from einsmith.lang.builder import Value, as_value
from einsmith.passes.analysis.index_checks import index_checks
from einsmith.runtime.arena import Arena
from einsmith.runtime.memory import Memory, in_memory
from einsmith.runtime.thread_count import get_threads

_STATIC = (str, bool, type(None))


def is_traced(tree: Any) -> bool:
    """Return whether some leaf is a traced tensor."""
    return any(isinstance(x, Value) for x in flatten(tree)[0])


def in_trace(tree: Any) -> bool:
    """Return whether a call with these arguments extends a trace: tracing is under way, or a leaf is a traced
    tensor."""
    return trace.current_trace() is not None or is_traced(tree)


@dataclass
class _Traced:
    """A traced call: the graph, the objects bound to its leaves, and the structure of the results."""

    graph: Graph
    bind: dict[Leaf, np.ndarray]
    live: list[tuple[Any, Memory]]
    structure: Any
    depends: list[Any]
    origins: Origins

    @property
    def guard(self) -> locks.Guard | None:
        """Return the lock of the parameters and the state that the call reads or updates; None where there are none."""
        return locks.Guard(m.guard for _, m in self.live) if self.live else None


_Compiled = tuple[Executable, _Traced]


class Argument:
    """One leaf of the arguments as it enters a trace: an array, a run-time number, or a static value."""

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
        """The part of a cache key: type and shape of an array, the value of a static argument."""
        if not self.static:
            return (self.dtype, self.shape, self.weak, self.wide)
        try:
            hash(self.value)
        except TypeError:
            raise TraceError(
                f"a static argument is {describe(self.value)}, which cannot be hashed; pass a tuple, a string "
                "or a number"
            ) from None
        # 0.0 and -0.0 are equal, and NaN is not equal to itself.
        return ("static", type(self.value), repr(self.value) if isinstance(self.value, float) else self.value)

    def symbol(self) -> tuple[Any, Leaf | None]:
        """Return the value that the traced function sees, and the graph input behind it (None for a static value)."""
        if self.static:
            return self.value, None
        x = leaf(self.shape, self.dtype)
        return Value(x, weak=self.weak, wide=self.wide), x


def trace_call(f: Callable, args: tuple, kwargs: dict, static: frozenset = frozenset()):
    """Trace a call of f. `static` holds the keyword names and positions of static arguments."""
    arguments = arguments_of(args, kwargs, static, names_of(f))
    return trace_arguments(f, arguments, flatten((list(args), kwargs))[1])


class _Shaped:
    """An argument of which only shape and type are known."""

    __slots__ = ("leaf", "name")

    def __init__(self, shape: Sequence[int], dtype: DType, name: str):
        self.leaf, self.name = leaf(shape, dtype), name

    def symbol(self) -> tuple[Value, Leaf]:
        return Value(self.leaf), self.leaf


def trace_shapes(f: Callable, arguments: Sequence[tuple[Sequence[int], DType]], names: Sequence[str] = ()) -> _Traced:
    """Trace f for tensors of these shapes and types, passed by position, without compiling anything. `names`: of the
    arguments, for messages."""
    names = [*names, *(f"argument {n}" for n in range(len(names), len(arguments)))]
    symbols = [_Shaped(shape, dtype, name) for (shape, dtype), name in zip(arguments, names, strict=True)]
    return trace_arguments(f, symbols, flatten((symbols, {}))[1])


def names_of(f: Callable) -> tuple[str, ...]:
    """Return the names of f's positional arguments for messages; () where the signature is unknown."""
    if hasattr(f, "argument_names"):
        return tuple(f.argument_names)
    try:
        found = inspect.signature(getattr(f, "forward", f)).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def arguments_of(args: tuple, kwargs: dict, static: frozenset, names: Sequence[str] = ()) -> list[Argument]:
    """Return the leaves of the arguments. `names`: of arguments passed by position, for messages."""
    out: list[Argument] = []
    for key, tree in [*enumerate(args), *kwargs.items()]:
        name = key if isinstance(key, str) else names[key] if key < len(names) else f"argument {key}"
        out += [Argument(x, key in static, name) for x in flatten(tree)[0]]
    return out


def trace_arguments(f: Callable, arguments: Sequence[Argument | _Shaped], structure: Any) -> _Traced:
    """Trace f on symbols of the arguments and return its graph with everything that a call needs.

    Args:
        f: the function to trace
        arguments: the leaves of the arguments; static ones enter by value
        structure: the structure into which the leaves unflatten, as (args, kwargs)
    """
    t = trace.Trace()
    with trace.compiling(), trace.tracing(t):
        symbols = [a.symbol() for a in arguments]
        args, kwargs = unflatten(structure, [s for s, _ in symbols])
        result = f(*args, **kwargs)
        leaves, out_structure = flatten(result)
        outputs = tuple(as_value(x).tensor for x in leaves)
    inputs = [x for _, x in symbols if x is not None]
    updates = tuple((t.capture(o, new.shape, new.dtype), new) for o, new in t.updates.values())
    captured = [x for _, x in t.captured.values()]
    graph = Graph((*inputs, *captured), outputs, updates, index_checks(t.checked))
    graph, bind, live = bound(graph, t.captured.values())
    names = {x: a.name for a, (_, x) in zip(arguments, symbols, strict=True) if x is not None}
    origins = Origins(names, tuple(t.origins), tuple(t.checked))
    return _Traced(graph, bind, live, out_structure, list(t.depends.values()), origins)


def bound(
    graph: Graph, captured: Iterable[tuple[Any, Leaf]]
) -> tuple[Graph, dict[Leaf, np.ndarray], list[tuple[Any, Memory]]]:
    """Return the graph in terms of the memory of the captured objects, that memory, and the live objects that own
    it."""
    pairs = list(captured)
    live = [(o, o.memory, x) for o, x in pairs if not isinstance(o, np.ndarray)]
    graph, leaves = in_memory(graph, {x: memory for _, memory, x in live})
    memory_of = {x: memory.physical for _, memory, x in live}
    bind = {leaves.get(x, x): memory_of[x] if x in memory_of else o for o, x in pairs}
    return graph, bind, [(o, memory) for o, memory, _ in live]


def global_name(f: Any) -> str | None:
    """Return the name under which f's module holds f itself, where a decorator made f; None if there is none.

    Such a function is pickled and copied by its name, as plain functions are.
    """
    name: str | None = getattr(f, "__qualname__", None)
    known: Any = sys.modules.get(getattr(f, "__module__", None) or "")
    for part in name.split(".") if name else ():
        known = getattr(known, part, None)
    return name if known is f else None


class Derived:
    """A function that `derive(*arguments)` made of another one.

    A copy is derived anew from copied arguments, so that objects the function closes over, such as a model, belong to
    the copy.
    """

    def __init__(self, f: Callable, derive: Callable[..., Any], arguments: tuple):
        functools.update_wrapper(self, f, updated=())  # type: ignore[arg-type]  # what derives from it is callable
        self._derived = derive, arguments

    def __repr__(self) -> str:
        derive, (f, *options) = self._derived
        parameters = list(inspect.signature(derive).parameters.values())[1:]
        told = [f", {p.name}={x!r}" for p, x in zip(parameters, options, strict=False) if x != p.default]
        return f"<{derive.__name__} of {signature_of(f)}{''.join(told)}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return global_name(self) or super().__reduce_ex__(protocol)

    def __getstate__(self) -> tuple:
        return self._derived

    def __setstate__(self, state: tuple) -> None:
        derive, arguments = state
        self.__dict__.update(derive(*arguments).__dict__)


class Jitted:
    """A compiled function.

    static_argnames: names of arguments that are static: each value is compiled separately; threads: of its programs,
    None for the default; winograd: whether convolutions may be computed in Winograd's form (see `jit`).

    A program belongs to a call's key and to the trace keys of all modules that were met while tracing for that key. The
    trace keys are compared only when `trace.version` shows a change.
    """

    def __init__(
        self, f: Callable, static_argnames: str | Iterable[str] = (), threads: int | None = None, winograd: bool = False
    ):
        functools.update_wrapper(self, f, updated=())
        self.f = f
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        if not all(isinstance(n, str) for n in names):
            raise KindError(f"static_argnames={show(static_argnames)} must be names of arguments")
        self.static = frozenset(names)
        self.threads = threads
        self.winograd = winograd
        self._ready: dict[Any, tuple[object, Entry[_Compiled]]] = {}
        self._depends: dict[Any, list[weakref.ref]] = {}
        self._quick: dict[tuple, tuple[object, Entry[_Compiled], int, Callable]] = {}
        self._arena = Arena()
        tidy = functools.partial(_tidy, self._arena, self._ready, self._quick, self._depends)
        self._cache: Cache[tuple, _Compiled] = Cache(PROGRAMS, lambda compiled: compiled[0].nbytes, tidy)
        self._names = _positions(f) if self.static else {}
        self._called = names_of(f)
        unknown = [n for n in self.static if n not in self._names]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(f).parameters.values()):
            raise ArgumentError(f"static_argnames: the function has no argument {unknown[0]!r}, only {[*self._names]}")

    @property
    def plan(self) -> str:
        """Describe what is compiled: every kernel of every set of arguments, with its pattern, configuration and
        predicted time."""
        parts = []
        for run, traced in self._cache.values():
            given = ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in traced.graph.inputs if x not in traced.bind)
            parts.append(f"for {given or 'no arrays'}\n{run.describe()}")
        return html.Text("\n\n".join(parts) or "nothing is compiled yet; call it on arrays")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return global_name(self) or super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        static = f", static {', '.join(sorted(self.static))}" if self.static else ""
        count = len(self._cache)
        return f"<jit of {signature_of(self.f)}{static}: {count} program{'' if count == 1 else 's'}>"

    def __getstate__(self) -> tuple:
        return self.f, tuple(sorted(self.static)), self.threads, self.winograd

    def __setstate__(self, state: tuple) -> None:
        self.__init__(*state)  # type: ignore[misc]  # programs and their memory are not copied

    def _current(self, key: Any) -> tuple[Entry[_Compiled], _Compiled] | None:
        """Return the cache entry and program compiled for `key`, or None if there is none or its trace is out of
        date."""
        version = trace.version()
        ready = self._ready.get(key)
        entry = ready[1] if ready is not None and ready[0] is version else self._find(key)
        compiled = None if entry is None else entry.value
        if entry is None or compiled is None:
            return None
        entry.used = tick()
        self._ready[key] = version, entry
        return entry, compiled

    def _find(self, key: Any) -> Entry[_Compiled] | None:
        entry = self._cache.find(_whole(key, self._depends.get(key, ())))
        compiled = None if entry is None else entry.value
        if compiled is None or any(o.memory is not memory for o, memory in compiled[1].live):
            return None
        return entry

    def _keep(self, key: Any, compiled: _Compiled) -> Entry[_Compiled]:
        known = self._depends.get(key, [])
        met = [r() for r in known]
        known = known + [weakref.ref(m) for m in compiled[1].depends if not any(m is n for n in met)]
        compiled[1].depends = []  # a module's own cache must not keep the module alive
        entry = self._cache.put(_whole(key, known), compiled)
        self._depends[key] = known
        return entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values: list[np.ndarray] = []
        plain = None if kwargs or self.static or trace.current_trace() is not None else _plain(args, values)
        known = None if plain is None else self._quick.get(plain)
        if known is not None:
            version, kept, threads, assembled = known
            compiled = kept.value
            if compiled is not None and version is trace.version() and threads == (self.threads or get_threads()):
                kept.used = tick()
                return assembled(compiled[0](values)[1])
        if in_trace((args, kwargs)):
            return self.f(*args, **kwargs)
        static = frozenset(self.static | {self._names[n] for n in self.static if n in self._names})
        arguments = arguments_of(args, kwargs, static, self._called)
        structure = flatten((list(args), kwargs))[1]
        threads = self.threads or get_threads()
        version = trace.version()  # changes from here on are not in the trace
        key = (structure, tuple(a.key for a in arguments), threads)
        current = self._current(key)
        if current is None:
            with trace.compiling():
                current = self._current(key)
                if current is None:
                    traced = trace_arguments(self.f, arguments, structure)
                    run = Executable(
                        traced.graph,
                        traced.bind,
                        threads,
                        winograd=self.winograd,
                        shared=self._arena,
                        guard=traced.guard,
                        origins=traced.origins,
                    )
                    made = run, traced
                    current = self._keep(key, made), made
        entry, (run, traced) = current
        if plain is not None:
            self._quick[plain] = version, entry, threads, _assembler(traced.structure)
        _, outputs = run([a.value for a in arguments if not a.static])
        return unflatten(traced.structure, outputs)


def _whole(key: Any, depends: Sequence[weakref.ref]) -> tuple:
    """Return a call's key, extended by the trace keys of the modules that its trace met."""
    met = [r() for r in depends]
    return (key, *(None if m is None else m.trace_key() for m in met))


def _tidy(arena: Arena, ready: dict, quick: dict, depends: dict, cache: Cache) -> None:
    """Drop the shortcuts to evicted programs, and the arena's memory with the last program."""
    arena.evicted(cache)
    for table in (ready, quick):
        for key, known in table.copy().items():
            if known[1].value is None:
                table.pop(key, None)
    alive = {whole[0] for whole in cache}
    for key in list(depends):
        if key not in alive:
            depends.pop(key, None)


_READABLE = 0x101
"""NumPy's flag bits of an array that is C-contiguous and aligned."""


def _plain(args: Sequence[Any], values: list[np.ndarray]) -> tuple | None:
    """Return the structure, shapes and types of arguments that can be used without conversion; None otherwise.

    Accepted are arrays that a program can read in place, and Python numbers, in tuples, lists and dicts. The arrays are
    added to `values`.
    """
    key: list[Any] = [type(args)]
    for x in args:
        kind = type(x)
        if kind is np.ndarray:
            if x.flags.num & _READABLE != _READABLE or not x.dtype.isnative:
                return None
            key.append(x.shape)
            key.append(x.dtype)
            values.append(x)
        elif kind is float or (kind is int and -(2**63) <= x < 2**63):
            key.append(kind if kind is float or -(2**31) <= x < 2**31 else "a wide integer")
            values.append(np.asarray(x, np.float64 if kind is float else np.int64))
        elif kind is tuple or kind is list or kind is dict:
            try:
                inner = _plain(tuple(x.values()) if kind is dict else x, values)
            except RecursionError:  # `flatten` says it
                return None
            if inner is None:
                return None
            key.append((dict, tuple(x), inner) if kind is dict else inner)
        else:
            return None
    return tuple(key)


def _assembler(structure: Any) -> Callable[[list], Any]:
    """Return the function that builds a call's result from the list of its leaves."""
    if structure == "*":
        return itemgetter(0)
    if structure is not None and structure[0] == "tuple" and all(s == "*" for s in structure[1]):
        return tuple
    return functools.partial(unflatten, structure)


def _positions(f: Callable) -> dict[str, int]:
    """Return the position of every named parameter of f, -1 for one that is keyword-only."""
    named = [p for p in inspect.signature(f).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: -1 if p.kind is p.KEYWORD_ONLY else i for i, p in enumerate(named)}


@check_arguments
def jit(f: Callable | None = None, static_argnames: str | Iterable[str] = (), winograd: bool = False) -> Any:
    """Compile f: traced once per structure, shapes, types and static values of its arguments, then run by one native
    call.

    winograd: allows 3x3 convolutions at stride 1 to be computed in Winograd's form, which is faster and rounds
    differently; the bound of its error is in `composite.winograd`. It mixes the pixels of a tile: an infinity or NaN
    makes all results of the tiles (of at most 4 x 4) that read it NaN or infinite, not only the 3 x 3 around it.
    """
    if f is None:
        return functools.partial(jit, static_argnames=static_argnames, winograd=winograd)
    return Jitted(f, static_argnames, winograd=winograd)


_JITTED: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()


def run_arrays(f: Callable, args: tuple, kwargs: dict) -> Any:
    """Call any of Einsmith's callables on arrays: it is jitted, and the compiled function is cached with the callable.

    A `static_argnames` attribute of the callable names its static keyword arguments.
    """
    return cached(_JITTED, f, lambda g: Jitted(g, getattr(f, "static_argnames", ())))(*args, **kwargs)


def cached(table: weakref.WeakKeyDictionary[Any, Jitted], f: Callable, make: Callable[[Callable], Jitted]) -> Jitted:
    """Return `make(f)`, cached as long as f lives; not cached where f has no hash or no weak references."""
    try:
        found = table.get(f)
        if found is None:
            table[f] = found = make(WeakFunction(f))
        return found
    except TypeError:
        return make(f)


class WeakFunction:
    """A weak reference to f that can be called, so that a cache entry that calls f does not keep it alive."""

    def __init__(self, f: Callable):
        functools.update_wrapper(self, f, updated=())
        del self.__wrapped__  # type: ignore[attr-defined]
        self.argument_names = names_of(f)
        self._ref = weakref.ref(f)

    @property
    def target(self) -> Callable:
        """The function; it must still be alive."""
        f = self._ref()
        assert f is not None, "whoever calls it holds it"
        return f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)


def _plan_of(f: Callable) -> str:
    found = _JITTED.get(f)
    return found.plan if found is not None and len(found._cache) else ""


trace.run_arrays = run_arrays
trace.plan_of = _plan_of
