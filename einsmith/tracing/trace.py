"""Track the current trace: which Python objects the leaves of the graph under construction represent."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import replace
from importlib import import_module
from typing import Any, NamedTuple

from einsmith.base import html, locks
from einsmith.base.dtypes import DType, f32
from einsmith.ir.nodes import Compute, Leaf, Tensor, apply, leaf, read_whole, template
from einsmith.ir.origins import Origin

_CURRENT: ContextVar[Trace | None] = ContextVar("einsmith_trace", default=None)


def _load_then_run(f: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    _load("einsmith.api.jit")
    return run_arrays(f, args, kwargs)


def _load_then_draw() -> Any:
    _load("einsmith.ops.random")
    return random_key()


def _load(module: str) -> None:
    """Import a module of a higher layer, which sets functions of this module."""
    with locks.IMPORTING:
        import_module(module)


run_arrays: Callable[..., Any] = _load_then_run
"""Set by einsmith.api.jit: `run_arrays(f, args, kwargs)` traces, compiles and runs a callable that was given arrays."""

plan_of: Callable[[Any], html.PlanText] = lambda f: html.PlanText(())  # noqa: E731  # nothing is compiled before
"""Set by einsmith.api.jit: returns a description of what is compiled for a callable that was given arrays."""

random_key: Callable[[], Any] = _load_then_draw
"""Set by einsmith.ops: returns the seed and the step, [2], for random numbers of the next call outside training
steps."""

_find_function: Callable[[str], Callable[..., Any]] | None = None


def function(name: str) -> Callable[..., Any]:
    """Return the function of tensors of that name, which a higher layer defines. Raises AttributeError if there is
    none."""
    if _find_function is None:
        _load("einsmith.ops")
    assert _find_function is not None
    return _find_function(name)


def provide_functions(find: Callable[[str], Callable[..., Any]]) -> None:
    """Set what finds a function of tensors by its name; traced tensors have some of them as methods. Called by
    einsmith.ops alone."""
    global _find_function
    _find_function = find


def provide_random_key(draw: Callable[[], Any]) -> None:
    """Set the function that draws the key of random numbers outside training steps."""
    global random_key
    random_key = draw


LOCK = locks.Reentrant("tracing or compiling")
"""Held while tracing and compiling (see `compiling`): memos of templates are shared by all threads. A thread that needs
both this lock and the guard of parameters takes the guard first."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend the cycle collector.

    Objects created and dropped in the block are freed by reference counting; the collector's scans every few hundred
    objects take a tenth of the time.
    """
    if not gc.isenabled():
        yield
        return
    with locks.undone(gc.enable):
        gc.disable()
        try:
            yield
        finally:
            gc.enable()


@contextmanager
def compiling() -> Iterator[None]:
    """Hold LOCK and suspend the cycle collector while tracing and compiling."""
    with LOCK, uncollected():
        yield


_version = object()


class Override:
    """Attribute values that only the current context sees (PEP 567), by object id; other threads that trace meanwhile
    see the attributes' own values."""

    code_parts = ()

    def __init__(self, around: Override | None):
        self._values: dict[int, tuple[Any, Any]] = {} if around is None else dict(around._values)
        self._version, self._seen = object(), _version
        self._version_at_start, self._is_kept = _version, False

    def get(self, owner: Any, default: Any) -> Any:
        """Return the value that overrides the attribute of `owner`, or `default` if none does."""
        entry = self._values.get(id(owner))
        return default if entry is None else entry[1]

    def set(self, owner: Any, value: Any) -> None:
        """Override the attribute of `owner` with a value."""
        if self._is_kept:  # other contexts use it, too
            own = Override(self)
            _OVERRIDE.set(own)
            own.set(owner, value)
            return
        self._values[id(owner)] = owner, value  # holds the owner so that its id stays unique
        self._version = object()

    def keep(self) -> None:
        """Freeze this override: from now on `set` changes a copy of it, which replaces it in the context."""
        self._is_kept = True

    def is_current(self) -> bool:
        """Return whether nothing that traces depend on has changed since this override began."""
        return self._version_at_start is _version

    def version(self) -> object:
        """Return a token that changes with these values and with the global version."""
        if self._seen is not _version:
            self._version, self._seen = object(), _version
        return self._version


_OVERRIDE: ContextVar[Override | None] = ContextVar("einsmith_override", default=None)


override: Callable[[], Override | None] = _OVERRIDE.get
"""Return the current context's override of attribute values, if it has one."""


def begin_override(kept: Override | None = None) -> tuple[Override, Token[Override | None]]:
    """Begin an override of attribute values for the current context, on top of those already in force; return it with
    the token for `end_override`. kept: the override where none is in force; None: a new one."""
    around = _OVERRIDE.get()
    inner = Override(around) if kept is None or around is not None else kept
    return inner, _OVERRIDE.set(inner)


end_override: Callable[[Token[Override | None]], None] = _OVERRIDE.reset
"""End an override that `begin_override` began in this context."""


def version() -> object:
    """Return a token that `touch` replaces: while it is one and the same object, nothing that traces depend on has
    changed."""
    own = _OVERRIDE.get()
    return _version if own is None else own.version()


def touch() -> None:
    """Invalidate traces after a change of something they depend on apart from arguments: a module's mode, parts or
    settings."""
    global _version
    _version = object()


class Call(NamedTuple):
    """A call of a traced function, or of an operator (`lang.op`): what was called, with which arguments, and what it
    returned."""

    function: Callable[..., Any]
    args: tuple
    kwargs: Mapping[str, Any]
    result: Any


class Trace:
    """Objects captured during a trace.

    A live object (a Parameter, a buffer) has one leaf. `updates`: new values for live objects, stored at the end of the
    step; `depends`: objects whose `trace_key()` decided what was traced; `checked`: tensors that were differentiated,
    whose indices are checked even where nothing needs the values; `origins`: of indices that are read from tensors;
    `function`: the outermost function of `einsmith.ops` under way; `key`: the seed and the step of random
    numbers, as ints or 0-d tensors, where they are known; `streams`: number of draws from each random stream; `paths`:
    names of modules, by id; sums_over_group: whether sums over the processes of a group are nodes of the graph
    (`ops.group_sum`); None: they are impossible; in_full_precision: ids of parameters whose products stay in float32
    (`base.numerics`); order: numbers of the tensors in the order in which functions returned them, where it is recorded
    (`recording_order`); calls: the calls of functions of tensors and of operators, inner ones first, if a list is set
    to record them.
    """

    def __init__(self) -> None:
        self.captured: dict[int, tuple[Any, Leaf]] = {}
        self.updates: dict[int, tuple[Any, Tensor]] = {}
        self.depends: dict[int, Any] = {}
        self.checked: list[Tensor] = []
        self.origins: list[Origin] = []
        self.function = ""
        self.key: tuple[Any, Any] | None = None
        self.streams: dict[str, int] = {}
        self.paths: dict[int, str] = {}
        self.sums_over_group: bool | None = False
        self.in_full_precision: frozenset[int] = frozenset()
        self.order: dict[Tensor, int] | None = None
        self.calls: list[Call] | None = None

    def capture(self, obj: Any, shape: tuple[int, ...], dtype: DType) -> Leaf:
        """Return the leaf that represents a live object in the trace; it is created at the object's first use."""
        if id(obj) not in self.captured:
            self.captured[id(obj)] = (obj, leaf(shape, dtype))
        return self.captured[id(obj)][1]

    def update(self, obj: Any, value: Tensor) -> None:
        """Store `value` into `obj` when the step ends."""
        self.updates[id(obj)] = (obj, value)


def record_call(function: Callable[..., Any], args: tuple, kwargs: Mapping[str, Any], result: Any) -> None:
    """Record a call in the current trace, if that records calls."""
    trace = current_trace()
    if trace is not None and trace.calls is not None:
        trace.calls.append(Call(function, args, kwargs, result))


current_trace: Callable[[], Trace | None] = _CURRENT.get
"""Return the trace that is being recorded in this context; None if there is none."""


@contextmanager
def recording_order() -> Iterator[dict[Tensor, int]]:
    """Yield the numbers of the tensors that functions return inside the block, in the order of the calls, which does
    not depend on extents."""
    trace = current_trace()
    assert trace is not None
    before, trace.order = trace.order, {}
    try:
        yield trace.order
    finally:
        trace.order = before


def in_full_precision(t: Tensor) -> Tensor:
    """Return a tensor whose products stay in float32 where others have 16 bits. Tensors of other types are returned
    unchanged."""
    if t.dtype is not f32:
        return t
    whole = apply("full_precision", read_whole(0, t.shape, t.dtype))
    return Compute(template(t.shape, [(t.dtype, t.shape)], whole), (t,))


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the current one; traces nest."""
    token = _CURRENT.set(trace)
    try:
        yield trace
    finally:
        _CURRENT.reset(token)


def record_origins(origins: Iterable[Origin]) -> None:
    """Add origins of indices to the current trace, as those of the function of tensors that is under way."""
    trace = current_trace()
    if trace is not None:
        trace.origins += [replace(o, function=trace.function) for o in origins]


@contextmanager
def name_scope(trace: Trace, function: str) -> Iterator[None]:
    """Name the function of tensors that is under way, unless it is a part of another one."""
    outer = trace.function
    trace.function = outer or function
    try:
        yield
    finally:
        trace.function = outer
