"""Compile a part of a graph of PyTorch's operators into programs, one for each layout of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any
from weakref import proxy

import torch

from einsmith import ops as F
from einsmith.api.tracing import trace_shapes
from einsmith.base.caches import Cache
from einsmith.base.dtypes import DType, dtype_of
from einsmith.base.environment import AUTO, EACH
from einsmith.base.errors import DtypeError, EinsmithError, TraceError
from einsmith.base.numerics import PLAIN, Numerics
from einsmith.cost.facts import CPU
from einsmith.driver.bound_program import PROGRAMS, BoundProgram
from einsmith.driver.executable import Executable
from einsmith.driver.sizes import SHARED_FUNCTIONS, Sizes, drop_outgrown
from einsmith.frontends import torch_device, torch_sizes, torch_threads
from einsmith.frontends.aten.aten_graph import AtenNode, apply
from einsmith.frontends.torch_compile import frozen, layout, result_pool
from einsmith.frontends.torch_compile.frozen import FrozenWeight
from einsmith.frontends.torch_compile.layout import Placed
from einsmith.frontends.torch_nodes import TORCH, TYPES
from einsmith.ir.nodes import Graph, size
from einsmith.runtime.buffers import ALIGNMENT
from einsmith.tracing import trace
from einsmith.tracing.builder import Value, as_value

_SEED = 2**31


class OperatorRefusedError(TraceError):
    """An operator whose formula does not take its arguments. node: the operator's name in the graph."""

    def __init__(self, node: str, why: str):
        super().__init__(why)
        self.node = node


@dataclass(frozen=True)
class Result:
    """A region's result. order: its dimensions in memory, the outermost first; strides: None if they are not static."""

    name: str
    order: tuple[int, ...]
    strides: tuple[int, ...] | None


class RegionProgram:
    """A region's program for one layout of its inputs.

    in_place: whether it writes results into inputs itself, whose layout is then that of the results. weights: what it
    takes for constant, by the inputs' numbers.
    """

    __slots__ = ("bound", "run_at", "checks", "result_layouts", "in_place", "weights")

    def __init__(self, region: Region, inputs: Sequence[Any], threads: int, in_place: bool):
        self.in_place = in_place
        self.weights = [(n, x.weight) for n, x in enumerate(inputs) if isinstance(x, Placed) and x.weight is not None]
        self.checks = [(x.shape, x.strides, TORCH[x.dtype]) if isinstance(x, Placed) else x for x in inputs]
        sizes = region.sizes_of(inputs, threads, in_place)
        kept = [r for k, r in enumerate(region.results) if not (in_place and k in region.into)]
        run = None if sizes is None else sizes.predict(region.extents_of(inputs))
        if run is not None:
            assert run.runs.fit is not None
            self._take(run, kept, run.runs.fit.outputs, [t.dtype for t in run.graph.outputs])
            return
        traced = region.trace(inputs, in_place)
        run = None if sizes is None else sizes.find(region.extents_of(inputs), traced)
        if run is None:
            run = region.compile(traced.graph, traced, threads)
        outputs = traced.graph.outputs
        self._take(run, kept, [t.shape for t in outputs], [t.dtype for t in outputs])

    def fits(self, args: Sequence[Any]) -> bool:
        """Return whether the program is one for arguments: of their layout, with their constants."""
        return _fits(args, self.checks) and all(weight.is_of(args[n]) for n, weight in self.weights)

    def _take(
        self, run: BoundProgram, results: Sequence[Result], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[DType]
    ) -> None:
        """Keep a program, whose results have these shapes and types in memory."""
        self.bound, self.run_at = run, run.run_at
        self.result_layouts: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, int]] = []
        for result, physical, dtype in zip(results, shapes, dtypes, strict=True):
            shape = layout.logical(physical, result.order)
            known = result.strides if result.strides is not None and len(result.strides) == len(shape) else None
            steps = known or layout.strides(shape, result.order)
            self.result_layouts.append((shape, steps, TORCH[dtype], size(shape) * dtype.itemsize))


class Region:
    """A group of operators that one native call computes.

    inputs: names of tensors and numbers; results: in the order in which a call returns them; into: result -> input (by
    number) for results that are written into inputs, which a call then returns; random: whether a call draws a seed
    from PyTorch's generator; fallback: the operators in PyTorch, called if the inputs' layout cannot be compiled;
    failed: called before it with the exception, and raises if fallback is an error; sizes: whether several sizes of the
    inputs share a program (`driver.sizes`), None for what EINSMITH_SIZES says; device: where the tensors lie
    (`torch_device.device_of`); weights: the inputs that are frozen, with the example's; keep: the option `frozen`.
    """

    def __init__(
        self,
        nodes: Sequence[AtenNode],
        inputs: Sequence[str],
        results: Sequence[Result],
        random: bool,
        fallback: Callable[..., Any],
        failed: Callable[[Exception], None],
        numerics: Numerics = PLAIN,
        into: Mapping[int, int] | None = None,
        sizes: str | None = None,
        device: str = CPU,
        weights: Mapping[int, FrozenWeight] = MappingProxyType({}),
        keep: bool | str = False,
    ):
        self._place = torch_device.place(device)
        self._choice = torch_sizes.choose(device, sizes)
        self._reads_numbers = self._choice != EACH
        self._other_extents: tuple[tuple[int, ...], ...] | None = None
        self.nodes, self.inputs, self.results = tuple(nodes), tuple(inputs), tuple(results)
        self.random, self.numerics = random, numerics
        self.fallback, self.failed = fallback, failed
        self.into = dict(into or {})
        self._frozen, self._keep_in = tuple(weights), keep if isinstance(keep, str) else None
        self._own = self._new_programs()
        self.__name__ = "einsmith"

    def _new_programs(self) -> _Programs:
        return _Programs(self._place.arena.evicted)

    def _programs_of(self, inputs: Sequence[Any]) -> _Programs:
        """Return the programs for inputs: those that go with the first frozen one."""
        if not self._frozen:
            return self._own
        x = inputs[self._frozen[0]]
        storage = x.weight.storage if isinstance(x, Placed) else x.untyped_storage()
        return frozen.programs_of(storage, self, self._new_programs)

    def trace(self, inputs: Sequence[Any], in_place: bool = False) -> Any:
        """Return the region's traced graph for `inputs`: `Placed` tensors, which carry their layout, and numbers.
        in_place: results are stored into inputs.

        Raises OperatorRefusedError.
        """
        tensors = [x for x in inputs if _is_argument(x)]
        kinds = [(x.physical, x.dtype) for x in tensors]
        if self.random:
            kinds.append(((2,), dtype_of("int32")))

        def f(*values: Any) -> tuple:
            known: dict[str, Any] = {}
            traced_values = iter(values)
            for name, x in zip(self.inputs, inputs, strict=True):
                if _is_argument(x):
                    known[name] = x.view(next(traced_values))
                else:
                    known[name] = x.view(as_value(x.weight.value)) if isinstance(x, Placed) else x
            if self.random:
                seed = next(traced_values)
                now = trace.current_trace()
                assert now is not None
                now.key = seed[0], seed[1]
            for node in self.nodes:
                try:
                    known[node.name] = apply(node, known, {})
                except OperatorRefusedError:
                    raise
                except EinsmithError as e:
                    raise OperatorRefusedError(node.name, str(e)) from e
                except (TypeError, ValueError, ArithmeticError, LookupError, AssertionError, AttributeError) as e:
                    raise OperatorRefusedError(node.name, f"its formula does not take these arguments ({e})") from e
            return tuple(_permute_to_memory(known[r.name], r.order) for r in self.results)

        with trace.compiling():
            names = [name for name, x in zip(self.inputs, inputs, strict=True) if _is_argument(x)]
            traced = trace_shapes(f, kinds, names)
        own = [m for x in inputs if isinstance(x, Placed) and x.weight is not None for m in x.weight.memories]
        if any(all(m is not k for k in own) for _, m in traced.live):
            raise TraceError("a Parameter or a buffer of Einsmith is captured; pass its values as a tensor argument")
        if in_place:
            graph, at = traced.graph, [n for n, x in enumerate(inputs) if _is_argument(x)]
            stored = ((graph.inputs[at.index(n)], graph.outputs[k]) for k, n in self.into.items())
            outputs = tuple(t for k, t in enumerate(graph.outputs) if k not in self.into)
            traced.graph = Graph(graph.inputs, outputs, (*graph.updates, *stored), graph.checks, graph.gradients)
        return traced

    def compile(self, graph: Graph, traced: Any, threads: int, **limits: Any) -> BoundProgram:
        """Return the program of a graph for the inputs of a trace. limits: options of the Executable."""
        memories = [m for _, m in traced.live]
        return Executable(
            graph,
            traced.bind,
            threads,
            target=self._place.target(threads),
            numerics=self.numerics,
            shared=self._place.arena,
            origins=traced.origins,
            guard=traced.guard,
            memories=memories,
            frozen=memories,
            is_sparing=True,
            **limits,
        )

    def extents_of(self, inputs: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        """Return the sizes of inputs: the extents of tensors, and integers, which PyTorch hands over for dynamic
        extents."""
        tensors = (x.shape for x in inputs if _is_argument(x))
        return (*tensors, tuple(x for x in inputs if type(x) is int))

    def sizes_of(self, inputs: Sequence[Any], threads: int, in_place: bool = False) -> Sizes[Any] | None:
        """Return the sizes of calls that differ from this one in extents alone; None where they share no program."""
        if self._choice == EACH or any(isinstance(x, Placed) and not _is_dense(x) for x in inputs):
            return None
        is_size = [type(x) is int for x in inputs]
        me = proxy(self)  # what weights keep must not keep regions

        def trace_for(shapes: Sequence[tuple[int, ...]]) -> Any:
            tensors, numbers = iter(shapes[:-1]), iter(shapes[-1])
            others: list[Any] = []
            for x, n in zip(inputs, is_size, strict=True):
                if _is_argument(x):
                    shape = next(tensors)
                    others.append(
                        x if x.is_number else layout.memory_order(shape, layout.strides(shape, x.dims or ()), x.dtype)
                    )
                else:
                    others.append(next(numbers) if n else x)
            return me.trace(others, in_place)

        def compile_graph(graph: Graph, traced: Any, **limits: Any) -> BoundProgram:
            return me.compile(graph, traced, threads, **limits)

        kinds = (
            threads,
            in_place,
            *(
                (x.dtype, x.dims) if _is_argument(x) else int if n else _key(x)
                for x, n in zip(inputs, is_size, strict=True)
            ),
        )
        new: Sizes[Any] = Sizes(trace_for, compile_graph, False, (), self._choice == AUTO, self._other_extents)
        return self._programs_of(inputs).sizes.setdefault(kinds, new)

    def prepare(self, inputs: Sequence[Any], others: Sequence[Any]) -> None:
        """Compile for the layout of `inputs`. others: inputs of other sizes, which tell what varies. Raises
        OperatorRefusedError and what compiling raises."""
        threads = torch_threads.threads()
        inputs, others = (
            [layout.NUMBER if self._reads_numbers and type(x) is float else x for x in xs] for xs in (inputs, others)
        )
        self._other_extents = self.extents_of(others)
        in_place = self._lies_so(inputs)
        program = RegionProgram(self, inputs, threads, in_place)
        self._programs_of(inputs).keep((threads, in_place, *(_key(x) for x in inputs)), program)

    def _lies_so(self, inputs: Sequence[Any]) -> bool:
        """Return whether all inputs that results are written into are contiguous like the results, and not empty."""
        return bool(self.into) and all(
            inputs[n].dims == tuple(range(len(inputs[n].shape))) == tuple(self.results[k].order)
            and 0 not in inputs[n].shape
            for k, n in self.into.items()
        )

    def _can_store(self, into: Sequence[Any], args: Sequence[Any]) -> bool:
        """Return whether a program can write results into the tensors `into`, which it reads as `args`."""
        return all(args[n] is into[n] and into[n].data_ptr() % ALIGNMENT == 0 for n in self.into.values())

    def __call__(self, *into: Any) -> Any:
        threads = torch_threads.threads()
        try:
            args = torch_device.in_memory(into)
        except DtypeError as e:
            self.failed(e)
            return self._into(into, iter(self.fallback(*into)), False)
        programs = self._programs_of(args)
        last = programs.last
        aligned = self._can_store(into, args)
        plain = args
        if self._reads_numbers:  # which may come of sizes, as a batch's N/(N - 1) does
            args = [torch.scalar_tensor(x, dtype=torch.float64) if type(x) is float else x for x in args]
        if last is None or last[0] != threads or (last[1].in_place and not aligned) or not last[1].fits(args):
            program = self._find(programs, args, plain, threads, aligned)
            if program is None:
                return self._into(into, iter(self.fallback(*plain)), False)
            args = args if self._reads_numbers else plain
        else:
            program = last[1]
        for n, weight in program.weights:
            weight.follow(args[n])
        stream = self._place.stream()
        outputs = [
            result_pool.empty(*each) if stream is None else self._empty(*each) for each in program.result_layouts
        ]
        taken = args if not self._frozen else [x for n, x in enumerate(args) if n not in self._frozen]
        pointers = [x.data_ptr() for x in taken if isinstance(x, torch.Tensor)]
        if self.random:
            seed = torch.randint(-_SEED, _SEED, (2,), dtype=torch.int32)
            if stream is not None:
                seed = torch_device.moved(seed, self._place.name)
            pointers.append(seed.data_ptr())
        program.run_at(pointers, [x.data_ptr() for x in outputs], stream)
        return self._into(into, iter(outputs), program.in_place) if self.into else outputs

    def _empty(self, shape: tuple[int, ...], steps: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> torch.Tensor:
        """Return a tensor of the region's device that is not initialised. steps: its strides (elements)."""
        if steps == layout.strides(shape, range(len(shape))):
            return self._place.empty(shape, dtype)
        return self._place.empty((nbytes // dtype.itemsize,), dtype).as_strided(shape, steps)

    def _into(self, args: Sequence[Any], computed: Iterator[torch.Tensor], in_place: bool) -> list[torch.Tensor]:
        """Return a call's results, with the inputs that some are written into in their place.

        computed: tensors that the program has computed. Results for inputs are copied there unless the program wrote
        them `in_place`.
        """
        results = []
        for k in range(len(self.results)):
            n = self.into.get(k)
            if n is None:
                results.append(next(computed))
                continue
            results.append(args[n])
            if in_place:
                torch.autograd.graph.increment_version(args[n])
            else:
                args[n].copy_(next(computed))
        return results

    def _find(
        self, programs: _Programs, args: Sequence[Any], plain: Sequence[Any], threads: int, aligned: bool
    ) -> RegionProgram | None:
        """Return the program for the layout of `args`, compiled if need be; None if it cannot be compiled.

        plain: the arguments with numbers as they are. Where an operator takes no number that is read when the program
        runs, numbers are constants from then on.
        """
        inputs = [
            layout.NUMBER
            if x is not y
            else layout.memory_order(tuple(x.shape), x.stride(), TYPES[x.dtype])
            if isinstance(x, torch.Tensor)
            else x
            for x, y in zip(args, plain, strict=True)
        ]
        for n in self._frozen:
            inputs[n] = replace(inputs[n], weight=frozen.weight_of(args[n], self._keep_in))
        in_place = aligned and self._lies_so(inputs)
        key = threads, in_place, *(_key(x) for x in inputs)
        program = programs.cache.get(key)
        if program is None:
            programs.drop_dead()
            with trace.compiling():
                program = programs.cache.get(key)
                if program is None:
                    try:
                        program = RegionProgram(self, inputs, threads, in_place)
                        programs.keep(key, program)
                    except Exception as e:
                        if any(x is layout.NUMBER for x in inputs):
                            self._reads_numbers = False
                            return self._find(programs, plain, plain, threads, aligned)
                        self.failed(e)
                        program = e.with_traceback(None)
                        programs.cache.put(key, program)
        if not isinstance(program, RegionProgram):
            return None
        programs.last = threads, program
        return program


class _Programs:
    """A region's programs for inputs among which the first frozen one is the same.

    cache: by the number of threads and what calls have in common; sizes: the sizes of calls that share programs; last:
    the program of the last call, with its number of threads.
    """

    def __init__(self, evicted: Callable[[Any], object]):
        self.cache: Cache[Any, RegionProgram | Exception] = Cache(PROGRAMS, _nbytes, evicted)
        self.sizes: Cache[Any, Sizes[Any]] = Cache(SHARED_FUNCTIONS)
        self.last: tuple[int, RegionProgram] | None = None

    def keep(self, key: tuple, program: RegionProgram) -> None:
        """Keep a program for further calls; key: the number of threads, then what its calls have in common."""
        self.cache.put(key, program)
        self.last = key[0], program
        drop_outgrown(program.bound, partial(self._drop, key))

    def _drop(self, key: tuple) -> None:
        self.cache.drop(key)
        self.last = None

    def drop_dead(self) -> None:
        """Forget the programs of weights that are no longer there."""
        for cache in (self.cache, self.sizes):
            for key in cache:
                if any(x.storage is None for x in _weights_in(key)):
                    cache.drop(key)
        self.last = None


def _nbytes(program: RegionProgram | Exception) -> int:
    return program.bound.nbytes if isinstance(program, RegionProgram) else 0


def _weights_in(key: Any) -> Iterator[FrozenWeight]:
    """Yield the weights in a key of programs (`_key`)."""
    if isinstance(key, tuple):
        for x in key:
            yield from _weights_in(x)
    elif isinstance(key, FrozenWeight):
        yield key


def _is_argument(x: Any) -> bool:
    """Return whether an input of a region is an argument of its programs: a tensor that is not constant."""
    return isinstance(x, Placed) and x.weight is None


def _is_dense(x: Placed) -> bool:
    """Return whether a tensor fills memory in some order of its dimensions, those of one element left out."""
    return x.dims is not None and 0 not in x.shape and all(n == 1 or d in x.dims for d, n in enumerate(x.shape))


def _key(x: Any) -> Any:
    return (x.shape, x.strides, x.dtype, x.weight) if isinstance(x, Placed) else (type(x), x)


def _fits(args: Sequence[Any], checks: Sequence[Any]) -> bool:
    for x, check in zip(args, checks, strict=True):
        if check.__class__ is not tuple:
            if x != check:
                return False
        elif x.shape != check[0] or x.stride() != check[1] or x.dtype is not check[2]:
            return False
    return True


def _permute_to_memory(x: Any, order: Sequence[int]) -> Value:
    """Return a result with its dimensions permuted into their order in memory."""
    value = as_value(x)
    return value if tuple(order) == tuple(range(value.ndim)) else F.permute(value, tuple(order))
