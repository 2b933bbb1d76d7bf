"""Formulas as PyTorch operators: `operator(f)` is f on torch's tensors, differentiable to any order.

Each definition registers two custom operators with torch. `einsmith::NAME` is the formula with its inputs by name;
`einsmith::NAME_program` takes a list of tensors and a text saying which derivative of the formula to run on them, so
that the backward of a backward needs no registration while torch.compile traces. Both run on the tensors' own memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from einsmith.api.tracing import trace_shapes
from einsmith.base import locks
from einsmith.base.arguments import check_options, describe, refuse_torch, show
from einsmith.base.caches import Bound, Cache
from einsmith.base.environment import AUTO, EACH
from einsmith.base.errors import DtypeError, FormulaError, KindError, ShapeError, TraceError
from einsmith.base.trees import flatten
from einsmith.cost.facts import CPU
from einsmith.driver.bound_program import PROGRAMS, BoundProgram
from einsmith.driver.executable import Executable
from einsmith.driver.sizes import SHARED_FUNCTIONS, Sizes, drop_outgrown
from einsmith.frontends import torch_device, torch_sizes, torch_threads
from einsmith.frontends.aten.table import enter
from einsmith.frontends.torch_nodes import TORCH, TYPES
from einsmith.frontends.torch_program import Program, differentiate, read
from einsmith.frontends.torch_register import argument_name, name_of, register, spoken_name
from einsmith.frontends.torch_symbolic import copied_sizes, fix, hint, is_symbolic
from einsmith.ir.nodes import Graph
from einsmith.lang.gradient_text import FormulaText
from einsmith.lang.op import Operator
from einsmith.runtime.arena import Arena
from einsmith.runtime.buffers import ALIGNMENT
from einsmith.tracing import trace
from einsmith.tracing.builder import Value, as_value

__all__ = ["TorchOperator", "operator"]

Key = tuple[Any, ...]
Shape = tuple[int, ...]

_DEFINITIONS: dict[str, _Definition] = {}
_TRACED = Bound("traced operators of PyTorch", 1024)
_lock = locks.Awaited("registering an operator")
"""Held during a registration; a forked child could not use one that is half done."""


def operator(f: Callable, **params: Any) -> TorchOperator:
    """Make `f`, an `es.op` or any function of traced tensors that returns one or several, an operator on torch tensors.

    params: passed to every call of f (a formula's static parameters, say). The result takes tensors of the CPU, or of
    one CUDA device (docs/gpu.md), of float16, bfloat16, float32, float64, uint8, int8, int16, int32, int64 or bool by
    position; a formula's inputs also by name, and numbers or 0-d tensors for its run-time parameters; tensors are then
    differentiated too. float16 and bfloat16 are computed in float32 and rounded where a tensor is written. It gives new
    tensors, several as a tuple. Gradients are those of es.vjp and tangents those of es.jvp, to any order; integer
    tensors have none. torch.func and torch.autograd.forward_ad compose with it; under torch.vmap it is one operator
    with an axis more. Inputs are read where they lie; non-contiguous ones are copied, and under torch.autocast those of
    fewer bits become float32. It can be pickled if f can.

    The first shapes have a program of their own, further ones share one, unless EINSMITH_SIZES is "each"
    (docs/sizes.md). torch.compile and torch.export take the operator as one node. Dimensions that a formula copies,
    indexed by plain axes alone, may have symbolic sizes there; other dimensions, and those of a function, have fixed
    ones. Formulas of the same text, options and parameters are registered once, for the life of the process. Calls
    raise DtypeError and ShapeError, naming the argument, FormulaError and IndexOutOfRange.
    """
    refuse_torch(f, "f")
    if isinstance(f, str):
        raise KindError(f"operator takes an es.op, not a text; make one of it, operator(es.op({show(f)}))")
    if not callable(f) or isinstance(f, type):
        raise KindError(f"operator takes an es.op or a function of tensors, not {show(f)}")
    if isinstance(f, Operator):
        for name in params:
            f._check_name(name)
    elif params:
        try:
            inspect.signature(f)
        except (TypeError, ValueError):
            pass  # one written in C: its call says what it does not take
        else:
            check_options(f, params)
    for name, value in params.items():
        if isinstance(value, torch.Tensor):
            raise TraceError(f"{name} is a tensor; pass it to the call, f(..., {name}=tensor), so that it can change")
    return TorchOperator(_define(f, params))


def _build_operator(f: Callable, params: dict[str, Any]) -> TorchOperator:
    return operator(f, **params)


class TorchOperator:
    """What `operator` returns: call it with tensors. `op` is the registered torch operator (torch.ops.einsmith...)."""

    def __init__(self, definition: _Definition):
        self._definition = definition
        self._inputs = definition.inputs
        self._arity = len(definition.inputs) if definition.formula else -1
        self._program = definition.any_op
        self.op = definition.op
        self.__name__ = definition.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != self._arity:
            return self._call(args, kwargs)
        for k, x in enumerate(args):
            if not isinstance(x, torch.Tensor):
                self._refuse_traced(args)
                raise self._no_tensor(self._inputs[k], x)
        return self.op(*args)

    def gradient(self, wrt: str | Sequence[str], *args: Any, **kwargs: Any) -> FormulaText:
        """Return the derived gradient as a formula of its own: `gradient` of the es.op that this is an operator of.

        wrt: the inputs to differentiate by; the inputs, in order or by name, are shapes, arrays or tensors. Raises
        KindError for the operator of a Python function, which has no text.
        """
        formula = self._definition.formula
        if formula is None:
            raise KindError(
                f"{self.__name__} is the operator of a Python function, whose gradient has no text; only an es.op's "
                "has. torch.autograd.grad and backward() give the gradient's values"
            )
        params = {**self._definition.params, **kwargs}
        plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in (*args, *params.values())]
        return formula.gradient(wrt, *plain[: len(args)], **dict(zip(params, plain[len(args) :], strict=True)))

    def _refuse_traced(self, values: Sequence[Any]) -> None:
        if any(isinstance(x, Value) for x in values):
            raise TraceError(
                f"{self.__name__} is an operator on PyTorch's tensors; inside a function or module of Einsmith, call "
                "the es.op itself, of which operator() made it"
            )

    def _no_tensor(self, name: str, x: Any) -> DtypeError:
        return DtypeError(f"{self.__name__}: {name} is {describe(x)}; pass a torch tensor")

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        self._refuse_traced((*args, *kwargs.values()))
        tensors = list(args)
        if self._arity >= 0:
            if len(args) > self._arity:
                raise FormulaError(
                    f"{self.__name__} takes {self._arity} inputs ({', '.join(self._inputs)}), not {len(args)}"
                )
            formula = self._definition.formula
            if formula is not None:
                for name in kwargs:
                    formula._check_name(name)
            for name in self._inputs[len(args) :]:
                if name not in kwargs:
                    raise FormulaError(f"{self.__name__}: the input {name} is missing")
                tensors.append(kwargs[name])
        extra = [n for n in kwargs if self._arity < 0 or n not in self._inputs[len(args) :]]
        names = []
        for name in extra:
            value = kwargs[name]
            if isinstance(value, torch.Tensor):
                names.append(name)
            elif self._is_number(name, value):
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    raise DtypeError(f"{self.__name__}: the number {name} does not fit int64; pass a float")
                names.append(f"{name}~" if -(2**31) <= value < 2**31 or isinstance(value, float) else f"{name}~~")
                value = torch.scalar_tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
            else:
                if self._parameters().get(name):
                    why = (
                        "it decides a shape, an index or a guard, so another value needs another program. Give it "
                        f"once, before the call: operator(f, {name}={value!r})"
                    )
                else:
                    why = "a call takes tensors, and numbers for run-time parameters. Set other values once, "
                    why += f"operator(f, {name}=...)"
                raise TraceError(f"{self.__name__}: {name} is {describe(value)}; {why}")
            tensors.append(value)
        for k, x in enumerate(tensors):
            if not isinstance(x, torch.Tensor):
                raise self._no_tensor(self._inputs[k] if k < len(self._inputs) else f"argument {k}", x)
        if not extra and self._arity >= 0:
            return self.op(*tensors)
        out = self._program(tensors, ",".join(names))
        return out[0] if len(out) == 1 else tuple(out)

    def _is_number(self, name: str, value: Any) -> bool:
        """Return whether a value is a number for a run-time parameter of the formula."""
        return (
            isinstance(value, (int, float)) and not isinstance(value, bool) and not self._parameters().get(name, True)
        )

    def _parameters(self) -> Mapping[str, bool]:
        """Return the formula's parameters: name -> whether it decides a shape, an index or a guard."""
        return self._definition.formula.program.parameters if self._definition.formula else {}

    def __deepcopy__(self, memo: dict) -> TorchOperator:
        return self  # it holds no state: a copy of a module that uses it shares it

    def __reduce__(self) -> tuple:
        return _build_operator, (self._definition.f, self._definition.params)

    def __repr__(self) -> str:
        return f"<torch operator {self._definition.qualname}>"


class _Compiled:
    """A program for one combination of shapes and types, with all that a call needs."""

    __slots__ = ("run_at", "outputs", "nbytes")

    def __init__(self, run: BoundProgram):
        self.run_at, self.nbytes, fit = run.run_at, run.nbytes, run.runs.fit
        self.outputs = _outputs(run.graph, None if fit is None else fit.outputs)


def _outputs(
    graph: Graph, shapes: Sequence[tuple[int, ...]] | None = None
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and type of each output of a graph; `shapes`: those of a size that is below its capacity."""
    shapes = [t.shape for t in graph.outputs] if shapes is None else shapes
    return [(s, TORCH[t.dtype]) for s, t in zip(shapes, graph.outputs, strict=True)]


class _Definition:
    """A callable with its parameters, its registrations with torch, and its traces and programs."""

    def __init__(self, f: Callable, params: dict[str, Any], name: str):
        self.f, self.params = f, params
        self.name = spoken_name(f)
        self.formula = f if isinstance(f, Operator) else None
        self.inputs: tuple[str, ...] = self.formula.inputs if self.formula else tuple(_positional(f, params))
        self.arena = Arena()
        self.traced: Cache[Key, Any] = Cache(_TRACED)
        self.sizes: Cache[Key, Sizes[Any]] = Cache(SHARED_FUNCTIONS)
        self.compiled: Cache[Key, _Compiled] = Cache(PROGRAMS, lambda compiled: compiled.nbytes, self.arena.evicted)
        self.qualname = name
        self.any_op, self.op = _register(self)

    # -- the callable and its derivatives

    def function(self, program: Program) -> Callable:
        """Return a program's function of traced tensors. The function returns a tuple."""
        names = read(program)[0]

        def base(*values: Any) -> tuple:
            n = len(values) - len(names)
            extra = {
                name.rstrip("~"): Value(as_value(x).tensor, True, wide=name.endswith("~~")) if "~" in name else x
                for name, x in zip(names, values[n:], strict=True)
            }
            return tuple(as_value(x) for x in flatten(self.f(*values[:n], **self.params | extra))[0])

        return differentiate(base, program)

    def argument(self, program: Program, k: int) -> str:
        """Return the name of a program's input k for messages."""
        names, parts = read(program)
        names = [x.rstrip("~") for x in names]
        n = parts[0][0] if parts else None
        for known, kind, _ in parts:
            if k >= known:
                return "a tangent" if kind == ">" else "a gradient that flows back"
        inputs = [*self.inputs, *names] if self.formula else [*self.inputs[: (n or k + 1) - len(names)], *names]
        return inputs[k] if k < len(inputs) else f"argument {k}"

    # -- shapes alone

    def shapes(self, program: Program, tensors: Sequence[torch.Tensor]) -> list[tuple[tuple[Any, ...], torch.dtype]]:
        """Return shape and type of every output, by tracing.

        A symbolic size stays so where a formula copies the dimension (`infer.find_copied_dimensions`), and the results
        of the formula and of its pullback have it too. Others are fixed, as are all sizes of other programs.
        """
        device = torch_device.common(tensors)
        for k, x in enumerate(tensors):
            self._check(program, k, x, (*torch_device.SUPPORTED, "meta"))
        for k, x in enumerate(tensors):
            if torch_device.device_of(x) != device:
                self._check_number(program, k, x, device)
        try:
            symbolic = any(is_symbolic(n) for x in tensors for n in x.shape)
            free, why = copied_sizes(self.formula, program, tensors) if symbolic else ({}, {})
            sizes = [
                tuple(
                    hint(n) if (k, d) in free else fix(self.name, n, d, why.get((k, d))) for d, n in enumerate(x.shape)
                )
                for k, x in enumerate(tensors)
            ]
        except RuntimeError as e:
            raise ShapeError(
                f"{self.name} is compiled for fixed sizes, but a size here depends on values of tensors, {e}"
            ) from e
        outputs = _outputs(self._trace(program, [(s, x.dtype) for s, x in zip(sizes, tensors, strict=True)]).graph)
        if not free:
            return outputs
        parts = read(program)[1]
        if parts:
            return [(tuple(tensors[k].shape), dtype) for k, (_, dtype) in zip(parts[0][2], outputs, strict=True)]
        return [
            (tuple(free.get((-1 - o, d), n) for d, n in enumerate(shape)), dtype)
            for o, (shape, dtype) in enumerate(outputs)
        ]

    def _trace(self, program: Program, kinds: Sequence[tuple[Sequence[int], torch.dtype]]) -> Any:
        key = (program, *kinds)
        traced = self.traced.get(key)
        if traced is None:
            traced = self._trace_new(program, kinds)
            self.traced.put(key, traced)
        return traced

    def _trace_new(self, program: Program, kinds: Sequence[tuple[Sequence[int], torch.dtype]]) -> Any:
        with trace.compiling():
            names = [self.argument(program, k) for k in range(len(kinds))]
            traced = trace_shapes(self.function(program), [(s, TYPES[t]) for s, t in kinds], names)
        if traced.live:
            raise TraceError(
                f"{self.name} holds a Parameter or a buffer of Einsmith, for which PyTorch would see no "
                f"gradient; pass it as a tensor argument"
            )
        return traced

    def _check(
        self, program: Program, k: int, x: torch.Tensor, devices: tuple[str, ...] = torch_device.SUPPORTED
    ) -> None:
        if x.device.type in devices and x.layout is torch.strided and x.dtype in TYPES:
            return
        where = f"{self.name}: {self.argument(program, k)}"
        if x.device.type not in devices:
            raise DtypeError(
                f"{where} lies on the device {x.device}; only tensors of the CPU and of CUDA devices can be used, pass "
                "x.cpu()"
            )
        if x.layout is not torch.strided:
            raise DtypeError(f"{where} has the layout {x.layout}; pass x.to_dense()")
        known = ", ".join(str(t).removeprefix("torch.") for t in TYPES)
        raise DtypeError(f"{where} has the type {x.dtype}; convert it to one of {known}")

    # -- runs

    def run(self, program: Program, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run a program on tensors and return its outputs, in memory of torch's own."""
        threads = torch_threads.threads()
        device = torch_device.common(tensors)
        place = torch_device.place(device)
        key: list[Any] = [program, threads, device]
        keep: list[torch.Tensor] = []
        pointers: list[int] = []
        for k, x in enumerate(tensors):
            if not x.is_cpu or x.layout is not torch.strided:
                self._check(program, k, x)
            if torch_device.device_of(x) != device:
                self._check_number(program, k, x, device)
                x = torch_device.moved(x, device)
            if not x.is_contiguous():
                x = x.contiguous()
            keep.append(x)
            key += x.shape, x.dtype
            pointers.append(x.data_ptr())
        compiled = self.compiled.get(tuple(key))
        if compiled is None:
            compiled = self._compile(program, tensors, tuple(key), threads, place)
        outputs = [place.empty(shape, dtype) for shape, dtype in compiled.outputs]
        addresses = [x.data_ptr() for x in outputs]
        for a in addresses:
            if a % ALIGNMENT:
                raise TraceError(f"torch allocated memory at {a:#x}; outputs need an alignment of {ALIGNMENT} bytes")
        compiled.run_at(pointers, addresses, place.stream())
        return outputs

    def _check_number(self, program: Program, k: int, x: torch.Tensor, device: str) -> None:
        """Check that a tensor that lies on another device than others is a number, a 0-d tensor of the CPU. Raises
        DtypeError."""
        if x.ndim or not x.is_cpu:
            where = f"{self.name}: {self.argument(program, k)}"
            raise DtypeError(f"{where} lies on the device {x.device}, and another tensor on {device}; move one of them")

    def _compile(
        self, program: Program, tensors: Sequence[torch.Tensor], key: Key, threads: int, place: torch_device.TensorPlace
    ) -> _Compiled:
        for k, x in enumerate(tensors):
            self._check(program, k, x)
        with trace.compiling():
            compiled = self.compiled.get(key)
            if compiled is None:
                run = self._find(program, tensors, threads, place)
                compiled = _Compiled(run)
                self.compiled.put(key, compiled)
                drop_outgrown(run, partial(self.compiled.drop, key))
            return compiled

    def _find(
        self, program: Program, tensors: Sequence[torch.Tensor], threads: int, place: torch_device.TensorPlace
    ) -> BoundProgram:
        """Return the program for these tensors: one that other sizes share, where they do, or their own."""
        types = tuple(x.dtype for x in tensors)
        shapes = tuple(tuple(x.shape) for x in tensors)

        def trace_for(shapes: Sequence[tuple[int, ...]]) -> Any:
            return self._trace_new(program, list(zip(shapes, types, strict=True)))

        def compile_graph(graph: Graph, traced: Any, **limits: Any) -> BoundProgram:
            arena = self.arena if place.name == CPU else place.arena
            settings = dict(shared=arena, guard=traced.guard, origins=traced.origins, **limits)
            return Executable(graph, traced.bind, threads, target=place.target(threads), **settings)

        sizes = run = None
        choice = torch_sizes.choose(place.name)
        if choice != EACH:
            kinds = choice, program, threads, place.name, tuple((t, len(s)) for t, s in zip(types, shapes, strict=True))
            state = None if self.formula is None else ()
            new: Sizes[Any] = Sizes(trace_for, compile_graph, False, state, choice == AUTO)
            sizes = self.sizes.setdefault(kinds, new)
            run = sizes.predict(shapes)
        if run is None:
            traced = self._trace(program, list(zip(shapes, types, strict=True)))
            run = None if sizes is None else sizes.find(shapes, traced)
            run = compile_graph(traced.graph, traced) if run is None else run
        return run


# ------------------------------------------------------------------------------------------------- registration


def _define(f: Callable, params: dict[str, Any]) -> _Definition:
    with _lock:
        name = name_of(f, params)
        if name not in _DEFINITIONS:
            if isinstance(f, Operator) and not f.inputs:
                raise FormulaError(f"{f.name} reads no tensor; inside PyTorch an operator needs an input")
            _DEFINITIONS[name] = _Definition(f, params, name)
            _enter(_DEFINITIONS[name])
        return _DEFINITIONS[name]


def _enter(definition: _Definition) -> None:
    """Enter the operator into ATen's table, so that modules converted by `from_torch` use the formula in its place."""
    single = definition.formula is not None and len(definition.formula.program.outputs) == 1

    def named(*values: Any) -> Any:
        out = definition.function("")(*values)
        return out[0] if single else out

    def listed(values: Sequence[Any], program: Program | None = "") -> list[Any]:
        return list(definition.function(program or "")(*values))

    enter(f"{definition.qualname}.default", "the formula", named)
    enter(f"{definition.qualname}_program.default", "the formula, or a derivative of it", listed)


def _positional(f: Callable, params: dict[str, Any]) -> list[str]:
    try:
        takes = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in takes if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in params]


def _register(definition: _Definition) -> tuple[Any, Any]:
    """Return (the operator on lists of tensors, the operator with a formula's inputs by name or else the first one)."""
    qualname, formula = definition.qualname, definition.formula

    def checked(tensors: Sequence[torch.Tensor], program: Program) -> tuple:
        if not tensors:
            raise FormulaError(f"{definition.name} was called without a tensor")
        return tensors, program

    def listed(tensors: Sequence[torch.Tensor], program: Program | None = "") -> tuple:
        return checked(tensors, program or "")

    schema = "(Tensor[] tensors, str program) -> Tensor[]"
    any_op = definition.any_op = register(f"{qualname}_program", schema, definition, list, listed)
    if formula is None:
        return any_op, any_op
    single = len(formula.program.outputs) == 1
    arguments = ", ".join(f"Tensor {argument_name(n)}" for n in formula.inputs)
    result = "Tensor" if single else f"({', '.join(['Tensor'] * len(formula.program.outputs))})"
    pack = (lambda out: out[0]) if single else tuple
    return any_op, register(qualname, f"({arguments}) -> {result}", definition, pack, lambda *x: (x, ""))
