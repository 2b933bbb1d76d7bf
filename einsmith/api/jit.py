"""Trace functions of tensors, compile them, and cache the programs: `jit`, and what all transformations share.

A function that is called on arrays is called once on symbolic tensors of their shapes and types (tracing). The graph
that this gives is compiled, and the program is run on the arrays and cached for further calls.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from einsmith.api.library import called_modules
from einsmith.api.plain_calls import is_native, plain_call_key, plain_key
from einsmith.api.settings import DEFAULTS, CompileSettings
from einsmith.api.tracing import Argument, TracedCall, arguments_of, names_of, trace_arguments
from einsmith.base import html, locks
from einsmith.base.arguments import check_arguments, refuse_torch, show, signature_of
from einsmith.base.caches import Cache, Entry, tick
from einsmith.base.environment import AUTO, EACH
from einsmith.base.errors import ArgumentError, KindError
from einsmith.base.numerics import Numerics
from einsmith.base.trees import flatten, unflatten
from einsmith.driver.bound_program import PROGRAMS, BoundProgram
from einsmith.driver.executable import Executable
from einsmith.driver.sizes import SHARED_FUNCTIONS, Sizes, choose_sizes, drop_outgrown
from einsmith.ir.nodes import Graph
from einsmith.runtime.arena import Arena
from einsmith.runtime.thread_count import get_threads
from einsmith.schedule.row_clusters import MAX_STORED_BYTES
from einsmith.tracing import trace
from einsmith.tracing.calls import in_trace

_Compiled = tuple[BoundProgram, TracedCall]
"""A program with the traced call that it was compiled from."""


def global_name(f: Any) -> str | None:
    """Return the qualified name under which the module of f holds f itself; None if it does not.

    The module holds f itself where f is the result of a decorator. Such an object is pickled and copied by its name, as
    plain functions are.
    """
    name: str | None = getattr(f, "__qualname__", None)
    holder: Any = sys.modules.get(getattr(f, "__module__", None) or "")
    for part in name.split(".") if name else ():
        holder = getattr(holder, part, None)
    return name if holder is f else None


class Derived:
    """Base of functions that are derived from another one, such as its gradient. Subclasses define `__call__`.

    A copy is derived anew from copied arguments, so that objects the function closes over, such as a model, belong to
    the copy.

    Args:
        f: the function whose name, module and docstring this one takes over
        derive: the function that derived it
        arguments: the arguments of `derive`; the first is the original function
    """

    code_parts = ("_derived",)

    def __init__(self, f: Callable, derive: Callable[..., Any], arguments: tuple):
        refuse_torch(arguments[0], f"the argument of es.{derive.__name__}")
        functools.update_wrapper(self, f, updated=())  # type: ignore[arg-type]  # subclasses are callable
        self._derived = derive, arguments

    def __repr__(self) -> str:
        derive, (f, *options) = self._derived
        parameters = list(inspect.signature(derive).parameters.values())[1:]
        changed = [f", {p.name}={x!r}" for p, x in zip(parameters, options, strict=False) if x != p.default]
        return f"<{derive.__name__} of {signature_of(f)}{''.join(changed)}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return global_name(self) or super().__reduce_ex__(protocol)

    def __getstate__(self) -> tuple:
        return self._derived

    def __setstate__(self, state: tuple) -> None:
        derive, arguments = state
        self.__dict__.update(derive(*arguments).__dict__)


class Jitted:
    """A function that is compiled when it is called on arrays.

    Args:
        f: the function
        static_argnames: names of arguments that are static: a program is compiled for each value
        settings: how its programs are compiled, for one call after the other
        numerics: how its programs may round; by default as the settings say
        tune: how its programs are tuned, as `es.jit` says; tuned programs are for one size each

    A program is cached under its call's key (structure, types and shapes of the arguments, static values, threads) and
    the trace keys of all modules that were met while tracing for that key. The trace keys are compared only when
    `trace.version` shows a change.
    """

    code_parts = ("f",)

    def __init__(
        self,
        f: Callable,
        static_argnames: str | Iterable[str] = (),
        settings: CompileSettings = DEFAULTS,
        numerics: Numerics | None = None,
        tune: float | str = 0.0,
    ):
        refuse_torch(f, "the function")
        if tune and _find_search().parse_tune(tune)[1]:
            raise ArgumentError(f"tune={tune!r}: graphs are searched in training alone; use seconds or 'first-call'")
        functools.update_wrapper(self, f, updated=())
        self.f, self.settings, self.tune = f, settings, tune
        self.numerics = settings.numerics_of(f) if numerics is None else numerics
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        if not all(isinstance(n, str) for n in names):
            raise KindError(f"static_argnames={show(static_argnames)} must be names of arguments")
        self.static = frozenset(names)
        # By call key: (trace version, cache entry), valid while the version is the current one.
        self._ready: dict[Any, tuple[object, Entry[_Compiled]]] = {}
        # By call key: the modules that were met while tracing for it.
        self._depends: dict[Any, list[weakref.ref]] = {}
        # By `plain_call_key` of the arguments: (trace version, cache entry, threads, function that builds the result).
        self._quick: dict[tuple, tuple[object, Entry[_Compiled], int, Callable]] = {}
        # By what a call's key has besides shapes: the sizes seen, and the programs that they share.
        self._sizes: Cache[Any, Sizes[TracedCall]] = Cache(SHARED_FUNCTIONS)
        self._arena = Arena()
        evicted = functools.partial(_drop_evicted, self._arena, self._ready, self._quick, self._depends)
        self._cache: Cache[tuple, _Compiled] = Cache(PROGRAMS, lambda compiled: compiled[0].nbytes, evicted)
        self._positions = _positions_of(f) if self.static else {}
        self._settings = frozenset(self.static | {self._positions[n] for n in self.static if n in self._positions})
        self._argument_names = names_of(f)
        unknown = [n for n in self.static if n not in self._positions]
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(f).parameters.values()):
            raise ArgumentError(
                f"static_argnames: the function has no argument {unknown[0]!r}, only {[*self._positions]}"
            )

    @property
    def plan(self) -> html.PlanText:
        """A description of the compiled programs: for each, the kernels with pattern, configuration and predicted
        time."""
        parts = []
        for run, traced in self._cache.values():
            inputs = ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in traced.graph.inputs if x not in traced.bind)
            shared = ", in a program that other sizes share" if run.is_shared else ""
            parts.append((f"for {inputs or 'no arrays'}{shared}", run.describe(), run.bars))
        for sizes in self._sizes.values():
            parts += [("sizes that share no program", why, []) for why in dict.fromkeys(sizes.reasons.values())]
        return html.PlanText(parts, "nothing is compiled yet; call it on arrays")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return global_name(self) or super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        static = f", static {', '.join(sorted(self.static))}" if self.static else ""
        count = len(self._cache)
        return f"<jit of {signature_of(self.f)}{static}: {count} program{'' if count == 1 else 's'}>"

    def __getstate__(self) -> tuple:
        return self.f, tuple(sorted(self.static)), self.settings, self.numerics, self.tune

    def __setstate__(self, state: tuple) -> None:
        self.__init__(*state)  # type: ignore[misc]  # programs and their memory are not copied

    def _current(self, key: Any) -> tuple[Entry[_Compiled], _Compiled] | None:
        """Return the cache entry and the program for a call's key; None if there is none, or its trace is out of
        date."""
        version = trace.version()
        ready = self._ready.get(key)
        entry = ready[1] if ready is not None and ready[0] is version else self._find_entry(key)
        compiled = None if entry is None else entry.value
        if entry is None or compiled is None:
            return None
        entry.used = tick()
        self._ready[key] = version, entry
        return entry, compiled

    def _find_entry(self, key: Any) -> Entry[_Compiled] | None:
        """Return the cache entry for a call's key and the modules' present trace keys; None if there is none, or a
        captured object has new memory."""
        entry = self._cache.find(_extend_key(key, self._depends.get(key, ())))
        compiled = None if entry is None else entry.value
        if compiled is None or any(o.memory is not memory for o, memory in compiled[1].live):
            return None
        return entry

    def _store(self, key: Any, compiled: _Compiled) -> Entry[_Compiled]:
        """Cache a program under a call's key and the trace keys of the modules that its trace and earlier traces for
        that key met; return the cache entry."""
        depends = self._depends.get(key, [])
        met = [r() for r in depends]
        depends = depends + [weakref.ref(m) for m in compiled[1].depends if not any(m is n for n in met)]
        compiled[1].depends = []  # a module's own cache must not keep the module alive
        extended = _extend_key(key, depends)
        entry = self._cache.put(extended, compiled)
        self._depends[key] = depends
        drop_outgrown(compiled[0], functools.partial(_drop, weakref.ref(self._cache), extended))
        return entry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Arguments that need no conversion skip `flatten` and the checks of single arguments.
        values: list[np.ndarray] = []
        if trace.current_trace() is not None:
            plain = None
        elif kwargs or self._settings:
            plain = plain_call_key(args, kwargs, self._settings, values)
        else:
            plain = plain_key(args, values)
        try:
            shortcut = None if plain is None else self._quick.get(plain)
        except TypeError:  # an argument without a hash
            plain = shortcut = None
        if shortcut is not None:
            version, cached, threads, assemble = shortcut
            compiled = cached.value
            if (
                compiled is not None
                and version is trace.version()
                and threads == (self.settings.threads or get_threads())
            ):
                cached.used = tick()
                return assemble(compiled[0](values)[1])
        if in_trace(args, kwargs):
            return self.f(*args, **kwargs)
        arguments = arguments_of(args, kwargs, self._settings, self._argument_names)
        structure = flatten((list(args), kwargs))[1]
        threads = self.settings.threads or get_threads()
        version = trace.version()  # read before the trace, which may miss changes from here on
        key = (structure, tuple(a.key for a in arguments), threads)
        current = self._current(key)
        if current is None:
            with trace.compiling():
                current = self._current(key)  # another thread may have compiled it meanwhile
                if current is None:
                    program = self._compile(arguments, structure, threads)
                    current = self._store(key, program), program
        entry, (run, traced) = current
        if plain is not None and is_native(values):
            self._quick[plain] = version, entry, threads, _choose_assembler(traced.structure)
        _, outputs = run([a.value for a in arguments if not a.static])
        return unflatten(traced.structure, outputs)

    def _compile(self, arguments: list[Argument], structure: Any, threads: int) -> _Compiled:
        """Return a program for a call, compiled for its sizes or for a capacity that it shares with others."""
        is_tuned = bool(self.tune) and _find_search().can_measure(5)
        modules = None if is_tuned or choose_sizes(self.settings.sizes) == EACH else called_modules(self.f)
        state = None if modules is None else tuple(m.trace_key() for m in modules)
        if state is not None and (predicted := self._predict(arguments, structure, threads, state)) is not None:
            return predicted
        target = self.settings.target(threads)
        traced = trace_arguments(self.f, arguments, structure, self.numerics)

        def compile_graph(graph: Graph, traced: TracedCall, **limits: Any) -> BoundProgram:
            return Executable(
                graph,
                traced.bind,
                threads,
                numerics=self.numerics,
                max_stored=int(self.settings.max_stored),
                shared=self._arena,
                guard=traced.guard,
                origins=traced.origins,
                memories=[m for _, m in traced.live],
                target=target,
                **limits,
            )

        if is_tuned:
            program = compile_graph(traced.graph, traced)
            return _find_search().improve(program, [a.value for a in arguments if not a.static], self.tune), traced
        sizes = choose_sizes(self.settings.sizes, traced.graph)
        if sizes != EACH:
            known = self._sizes_of(arguments, structure, threads, compile_graph, sizes == AUTO)
            known.state = state
            run = known.find(_shapes_of(arguments), traced)
            if run is not None:
                return run, traced
        return compile_graph(traced.graph, traced), traced

    def _predict(self, arguments: list[Argument], structure: Any, threads: int, state: tuple) -> _Compiled | None:
        """Return a program for a call that shares one with other sizes, without a trace; None where it has to be
        traced. state: that of the modules."""
        is_free = choose_sizes(self.settings.sizes) == AUTO
        sizes = self._sizes.get(_sizes_key(arguments, structure, threads, is_free))
        if sizes is None:
            return None
        sizes.state = state
        known = sizes.predict_traced(_shapes_of(arguments))
        return None if known is None or any(o.memory is not memory for o, memory in known[1].live) else known

    def _sizes_of(
        self, arguments: list[Argument], structure: Any, threads: int, compile_graph: Callable, is_free: bool
    ) -> Sizes[TracedCall]:
        """Return the sizes of calls that differ from this one in extents alone."""
        kept = [a if a.static else a.of_shape(a.shape) for a in arguments]  # arrays are not kept alive

        def trace_for(shapes: Sequence[tuple[int, ...]]) -> TracedCall:
            remaining = iter(shapes)
            of_shapes = [a if a.static else a.of_shape(next(remaining)) for a in kept]
            return trace_arguments(self.f, of_shapes, structure, self.numerics)

        key = _sizes_key(arguments, structure, threads, is_free)
        return self._sizes.setdefault(key, Sizes(trace_for, compile_graph, is_free, is_outgrown=is_free))


def _shapes_of(arguments: Sequence[Argument]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the arguments that are arrays."""
    return tuple(a.shape for a in arguments if not a.static)


def _sizes_key(arguments: Sequence[Argument], structure: Any, threads: int, is_free: bool) -> tuple:
    """Return what calls that differ in extents alone have in common."""
    kinds = tuple(a.key if a.static else (a.dtype, len(a.shape), a.weak, a.wide) for a in arguments)
    return structure, kinds, threads, is_free


def _extend_key(key: Any, depends: Sequence[weakref.ref]) -> tuple:
    """Return the cache key of a program: a call's key, then the trace key of each module that the trace met, None for a
    module that is no longer alive."""
    met = [r() for r in depends]
    return (key, *(None if m is None else m.trace_key() for m in met))


def _drop(cache: weakref.ref[Cache], key: tuple) -> None:
    """Remove a program from a cache."""
    alive = cache()
    if alive is not None:
        alive.drop(key)


def _drop_evicted(arena: Arena, ready: dict, quick: dict, depends: dict, cache: Cache) -> None:
    """Remove what a Jitted holds for programs that its cache has evicted.

    That is the entries of its tables `_ready`, `_quick` and `_depends` and, with the last program, the memory of its
    arena.
    """
    arena.evicted(cache)
    for table in (ready, quick):
        for key, shortcut in table.copy().items():
            if shortcut[1].value is None:
                table.pop(key, None)
    remaining = {extended[0] for extended in cache}
    for key in list(depends):
        if key not in remaining:
            depends.pop(key, None)


def _choose_assembler(structure: Any) -> Callable[[list], Any]:
    """Return a fast function that builds a result of this structure (see `flatten`) from the list of its leaves."""
    if structure == "*":
        return itemgetter(0)
    if structure is not None and structure[0] == "tuple" and all(s == "*" for s in structure[1]):
        return tuple
    return functools.partial(unflatten, structure)


def _positions_of(f: Callable) -> dict[str, int]:
    """Return the position of each named parameter of f by its name; -1 for a keyword-only parameter."""
    named = [p for p in inspect.signature(f).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: -1 if p.kind is p.KEYWORD_ONLY else i for i, p in enumerate(named)}


@check_arguments
def jit(
    f: Callable | None = None,
    static_argnames: str | Iterable[str] = (),
    winograd: bool = False,
    max_stored: Any = MAX_STORED_BYTES,
    precision: str = "fp32",
    sizes: str | None = None,
    device: str | None = None,
    separate_exponentials: bool = False,
    tune: float | str = 0.0,
) -> Any:
    """Return a compiled version of a function of tensors.

    f is traced and compiled once for each structure, shapes, types and static values of its arguments; further calls
    run the program by one native call. Arrays that f reads around it have their present values at each call; other
    values of Python are those of the trace (docs/arguments.md). Called without f, `jit` returns a decorator with these
    options.

    Args:
        f: the function
        static_argnames: names of arguments that are static: a program is compiled for each value
        winograd: as in `es.CompileSettings`, as all that follow
        max_stored: largest result between two reductions that is stored where it need not be
        precision: element type of activations and of the operands of products
        sizes: whether one program serves calls of several sizes
        device: where programs run
        separate_exponentials: whether exponentials of sums may be products of exponentials of their terms
        tune: seconds to search faster configurations of the kernels of each program when it is compiled; or
            "first-call", which races the six candidates of each kernel that promise most once, for at most as long
            again as the compilation took, or two seconds. What is found is kept for later processes

    Raises:
        ArgumentError: `max_stored` is not a size, `precision`, `sizes` or `device` is none of those, or
            `static_argnames` has a name that is no argument of f. The first call raises DeviceError where there is no
            such card.
    """
    settings = CompileSettings(
        precision,
        winograd,
        device=device,
        sizes=sizes,
        max_stored=max_stored,
        separate_exponentials=separate_exponentials,
    )
    if f is None:
        return functools.partial(Jitted, static_argnames=static_argnames, settings=settings, tune=tune)
    return Jitted(f, static_argnames, settings, tune=tune)


def _find_search() -> Any:
    """Return the module that searches faster kernels; most programs need none."""
    with locks.IMPORTING:
        from einsmith.tuning.programs import kernel_search
    return kernel_search


_JITTED: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()
"""The compiled version of each callable that `run_arrays` was given."""


_TUNED: weakref.WeakKeyDictionary[Any, Jitted] = weakref.WeakKeyDictionary()
"""As `_JITTED`, of programs that are tuned."""


def run_arrays(f: Callable, args: tuple, kwargs: Mapping[str, Any]) -> Any:
    """Call f on arrays: compile it, cache the compiled version as long as f lives, and run it.

    f: a module, an operator or a function of tensors; its attribute `static_argnames`, if it has one, names its static
    arguments.
    """
    jitted = cached(_JITTED, f, lambda g: Jitted(g, getattr(f, "static_argnames", ())))
    return jitted(*args, **kwargs)


def call_tuned(f: Callable, tune: float | str, *args: Any) -> Any:
    """Call f on arrays as `run_arrays` does, by programs that are tuned, as in `jit`, when they are compiled."""
    if f in _TUNED and _TUNED[f].tune != tune:
        del _TUNED[f]
    return cached(_TUNED, f, lambda g: Jitted(g, tune=tune))(*args)


def cached(table: weakref.WeakKeyDictionary[Any, Jitted], f: Callable, make: Callable[[Callable], Jitted]) -> Jitted:
    """Return the compiled function that `make` derives from f, cached in `table` as long as f lives.

    A function without a hash or weak references is not cached, and `make` gets f itself; otherwise it gets a
    WeakFunction of f, so that the cached value does not keep f alive.
    """
    try:
        jitted = table.get(f)
        if jitted is None:
            table[f] = jitted = make(WeakFunction(f))
        return jitted
    except TypeError:
        return make(f)


class WeakFunction:
    """A function that calls f through a weak reference, so that a cached value that calls f does not keep f alive."""

    code_parts = ("target",)

    def __init__(self, f: Callable):
        functools.update_wrapper(self, f, updated=())
        del self.__wrapped__  # type: ignore[attr-defined]
        self.argument_names = names_of(f)
        self._ref = weakref.ref(f)

    @property
    def target(self) -> Callable:
        """The function f, which the caller keeps alive."""
        f = self._ref()
        assert f is not None, "the function is no longer alive"
        return f

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*args, **kwargs)


def _plan_of(f: Callable) -> html.PlanText:
    """Return the description of the programs that `run_arrays` compiled for a callable; "" if there are none."""
    jitted = _JITTED.get(f)
    return jitted.plan if jitted is not None and len(jitted._cache) else html.PlanText(())


trace.run_arrays = run_arrays
trace.plan_of = _plan_of
