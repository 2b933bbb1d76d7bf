"""An interpreter of loop nests on NumPy: runs what a pattern lowered without any code generator.

It is strict where machine code is not: an access outside its buffer, a loop without a trip that was said to have one,
and two lanes that are scattered to one place raise, and lanes that nothing defines hold rubbish.

Every instruction becomes a closure over the places of its operands, once a function. Scalar i64 are integers of Python,
which addresses are made of; all else is NumPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einsmith.codegen.loopnest.nest import Function
from einsmith.codegen.ssa import If, Loop, Op, SSAValue, Type
from einsmith.kernels.pattern import Lowered
from einsmith.schedule.kernel import Kernel

_NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "u8": np.uint8, "i8": np.int8,
    "i16": np.int16, "i32": np.int32, "i64": np.int64,
}  # fmt: skip
_BYTES = {k: np.dtype(v).itemsize for k, v in _NUMPY.items()}
_HALF = 1 << 63

Environment = list[Any]
"""The values of a function, each at its place."""
Step = Callable[[Environment], None]
Observer = Callable[[Op, list[Any]], None]
"""What is told every instruction before it runs, with its operands."""


class Fault(AssertionError):
    """An access outside its buffer, or what machine code is promised and does not hold."""


class Memory:
    """A buffer's bytes, and the elements that they are."""

    def __init__(self, raw: np.ndarray):
        self.raw = raw
        self._views: dict[tuple[str, int], np.ndarray] = {}

    def elements(self, elem: str, shift: int) -> np.ndarray:
        """Those from byte `shift` on."""
        found = self._views.get((elem, shift))
        if found is None:
            whole = (self.raw.size - shift) // _BYTES[elem] * _BYTES[elem]
            found = self._views[elem, shift] = self.raw[shift : shift + whole].view(_NUMPY[elem])
        return found


class Pointer:
    def __init__(self, memory: Memory, at: int = 0):
        self.memory, self.at = memory, at

    def place(self, elem: str) -> tuple[np.ndarray, int]:
        """The memory's elements and which of them the pointer is at."""
        first, shift = divmod(self.at, _BYTES[elem])
        return self.memory.elements(elem, shift), first


def _check(elements: np.ndarray, low: int, high: int) -> None:
    if low < 0 or high >= elements.size:
        raise Fault(f"access at elements {low} to {high} of {elements.size}")


# ------------------------------------------------------------------------------------------------------- instructions


def _divided(function: Callable, a: Any, b: Any) -> Any:
    """Integers over zero are zero."""
    with np.errstate(all="ignore"):
        return function(a, b)


def _wrap(x: int) -> int:
    return x if -_HALF <= x < _HALF else (x + _HALF) % (2 * _HALF) - _HALF


_MATH: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "pow": np.power, "exp": np.exp, "log": np.log, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "sqrt": np.sqrt, "abs": np.abs, "sign": np.sign, "floor": np.floor, "round": np.rint,
    "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or, "not": np.invert,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype), "any": np.any,
    "erf": lambda x: np.vectorize(math.erf, otypes=[np.asarray(x).dtype])(x),
    "sigmoid": lambda x: (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype),
    "fma": lambda a, b, c: (np.multiply(a, b, dtype=np.float64) + c).astype(a.dtype),
    "floordiv": lambda a, b: _divided(np.floor_divide, a, b), "mod": lambda a, b: _divided(np.mod, a, b),
}  # fmt: skip
_PYTHON: dict[str, Callable] = {
    "add": lambda a, b: _wrap(a + b), "sub": lambda a, b: _wrap(a - b), "mul": lambda a, b: _wrap(a * b),
    "min": min, "max": max, "neg": lambda a: _wrap(-a), "abs": lambda a: _wrap(abs(a)),
    "sign": lambda a: (a > 0) - (a < 0), "floordiv": lambda a, b: _wrap(a // b) if b else 0,
    "mod": lambda a, b: a % b if b else 0, "and": lambda a, b: a & b, "not": lambda a: ~a,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
}  # fmt: skip
"""Of scalar i64."""


def _plain(type: Type | None, x: Any) -> Any:
    """A result as the environment holds it; its type is what was promised."""
    if type is None or type.elem == "ptr":
        return x
    if type == Type("i64"):
        return int(x)
    x = np.asarray(x)
    assert x.dtype == _NUMPY[type.elem] and x.shape == ((type.lanes,) if type.lanes else ()), (x.dtype, x.shape, type)
    return x if type.lanes else x[()]


def _cast(type: Type, of: Type) -> Callable:
    to, source = _NUMPY[type.elem], _NUMPY[of.elem]
    if type.elem == "i1":
        return lambda a: np.asarray(a != 0)
    return lambda a: np.asarray(a, source).astype(to)


def _shuffle(lanes: Sequence[int], type: Type) -> Callable:
    at = np.array([max(i, 0) for i in lanes])
    undefined = np.flatnonzero([i < 0 for i in lanes])
    rubbish = np.asarray(99).astype(_NUMPY[type.elem])

    def shuffle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = np.concatenate((a, b)).take(at)
        if undefined.size:
            out[undefined] = rubbish
        return out

    return shuffle


def _splat(type: Type) -> Callable:
    lanes, elem = type.lanes, _NUMPY[type.elem]

    def splat(a: Any) -> np.ndarray:
        out = np.empty(lanes, elem)
        out.fill(a)
        return out

    return splat


def _insert(at: int) -> Callable:
    def insert(a: np.ndarray, x: Any) -> np.ndarray:
        out = a.copy()
        out[at] = x
        return out

    return insert


def _load(type: Type) -> Callable:
    elem, n = type.elem, type.lanes

    def load(pointer: Pointer, offset: int, mask: Any, other: Any) -> Any:
        elements, first = pointer.place(elem)
        first += offset
        if mask is None:
            _check(elements, first, first + max(n, 1) - 1)
            return elements[first : first + n].copy() if n else elements[first]
        if not n:
            if not mask:
                return _NUMPY[elem](0) if other is None else other
            _check(elements, first, first)
            return elements[first]
        return _picked(elements, first + np.arange(n), mask, other, type)

    return load


def _gather(type: Type) -> Callable:
    def gather(pointer: Pointer, offsets: np.ndarray, mask: Any) -> np.ndarray:
        elements, first = pointer.place(type.elem)
        return _picked(elements, offsets.astype(np.int64) + first, True if mask is None else mask, None, type)

    return gather


def _picked(elements: np.ndarray, at: np.ndarray, mask: Any, other: Any, type: Type) -> np.ndarray:
    """The elements in the lanes that are on; `other`, or zero, in those that are off."""
    out = np.full(type.lanes, 0 if other is None else other, _NUMPY[type.elem])
    on = np.flatnonzero(np.broadcast_to(mask, type.lanes))
    if on.size:
        at = at[on]
        _check(elements, int(at.min()), int(at.max()))
        out[on] = elements[at]
    return out


def _store(of: Type) -> Callable:
    n = of.lanes

    def store(pointer: Pointer, offset: int, value: Any, mask: Any = None) -> None:
        elements, first = pointer.place(of.elem)
        first += offset
        if mask is None:
            _check(elements, first, first + max(n, 1) - 1)
            elements[first : first + max(n, 1)] = value
            return
        on = np.flatnonzero(np.broadcast_to(mask, max(n, 1)))
        if on.size:
            _check(elements, first + int(on[0]), first + int(on[-1]))
            elements[first + on] = np.broadcast_to(value, max(n, 1))[on]

    return store


def _scatter(of: Type) -> Callable:
    def scatter(pointer: Pointer, offsets: np.ndarray, value: np.ndarray, mask: Any) -> None:
        elements, first = pointer.place(of.elem)
        on = slice(None) if mask is None else mask
        at = offsets.astype(np.int64)[on] + first
        assert len(set(at.tolist())) == len(at), "a scatter stores twice at one place"
        if at.size:
            _check(elements, int(at.min()), int(at.max()))
            elements[at] = value[on]

    return scatter


def _function(x: Op) -> Callable:
    """What an instruction does with its operands."""
    type, of = x.result.type if x.results else None, [v.type if v is not None else None for v in x.args]
    name, first = x.name, (of[0] if of else None)
    if name in ("store", "stream", "scatter"):
        assert of[2] is not None
        return _scatter(of[2]) if name == "scatter" else _store(of[2])
    if name in ("prefetch", "barrier"):
        return lambda *_: None
    assert type is not None
    if name in ("const", "literal"):
        elem = _NUMPY[type.elem]
        value = np.array(x.attrs[0], elem)
        made = np.full(type.lanes, value) if type.lanes and not value.ndim else value
        made.flags.writeable = False  # it is the same array at every run
        return lambda: made
    if name == "splat":
        return _splat(type)
    if name == "select":
        return np.where if type.lanes else lambda c, a, b: a if c else b
    if name in _MATH:
        return _PYTHON[name] if first == Type("i64") else _MATH[name]
    if name == "cast":
        assert first is not None
        return _cast(type, first)
    if name == "bitcast":
        return lambda a: np.asarray(a, _NUMPY[first.elem]).view(_NUMPY[type.elem])[() if type.lanes else ...]
    if name == "shuffle":
        return _shuffle(x.attrs[0], type)
    if name == "extract":
        return (lambda a, i: a[i]) if len(of) > 1 else lambda a: a[x.attrs[0]]
    if name == "insert":
        return _insert(x.attrs[0])
    if name in ("load", "gather"):
        return (_load if name == "load" else _gather)(type)
    if name == "address":
        return lambda a: Pointer(a.memory, a.at + x.attrs[0])
    if name == "advance":
        return lambda a, n: Pointer(a.memory, a.at + n * _BYTES[x.attrs[0]])
    raise NotImplementedError(name)


# ---------------------------------------------------------------------------------------------------------- functions


class _Compiled:
    """A function's instructions as closures over an environment whose first place holds None."""

    def __init__(self, f: Function, observe: Observer | None):
        self.f = f  # while it lives, no other function has its identity
        self.observe = observe
        self._places: dict[int, int] = {}
        self.steps = self._block(f.body)
        self.parameters = [self._place(v) for v in (*f.buffers, f.scratch, f.task)]
        self.size = len(self._places) + 1

    def _place(self, v: SSAValue | None) -> int:
        return 0 if v is None else self._places.setdefault(v.id, len(self._places) + 1)

    def _block(self, body: Sequence[Any]) -> list[Step]:
        make = {Loop: self._loop, If: self._if, Op: self._op}
        return [make[type(x)](x) for x in body]

    def _loop(self, x: Loop) -> Step:
        lo, hi, var, pace = self._place(x.lo), self._place(x.hi), self._place(x.var), x.step
        init, carried = [self._place(v) for v in x.init], [self._place(v) for v in x.carried]
        results, following = [self._place(v) for v in x.results], [self._place(v) for v in x.next]
        steps, runs = self._block(x.body), x.runs

        def loop(env: Environment) -> None:
            state = [env[p] for p in init]
            if runs and env[lo] >= env[hi]:
                raise Fault(f"no trip from {env[lo]} to {env[hi]} of a loop that has one")
            for i in range(env[lo], env[hi], pace):
                env[var] = i
                for p, v in zip(carried, state, strict=True):
                    env[p] = v
                for step in steps:
                    step(env)
                state = [env[p] for p in following]
            for p, v in zip(results, state, strict=True):
                env[p] = v

        return loop

    def _if(self, x: If) -> Step:
        cond, steps = self._place(x.cond), self._block(x.body)

        def run(env: Environment) -> None:
            if env[cond]:
                for step in steps:
                    step(env)

        return run

    def _op(self, x: Op) -> Step:
        f, at = _function(x), [self._place(v) for v in x.args]
        type, to = x.result.type if x.results else None, self._place(x.result if x.results else None)
        observe = self.observe
        if observe is not None:

            def seen(env: Environment) -> None:
                operands = [env[p] for p in at]
                observe(x, operands)
                env[to] = _plain(type, f(*operands))

            return seen
        if type == Type("i64") and len(at) == 2 and f in _PYTHON.values():
            return _whole(x.name, f, *at, to)
        if type is None or not type.lanes:

            def step(env: Environment) -> None:
                env[to] = _plain(type, f(*[env[p] for p in at]))

            return step
        dtype, shape = np.dtype(_NUMPY[type.elem]), (type.lanes,)

        def vector(env: Environment) -> None:
            out = f(*[env[p] for p in at])
            if out.__class__ is not np.ndarray or out.dtype is not dtype or out.shape != shape:
                out = _plain(type, out)
            env[to] = out

        return vector


def _whole(name: str, f: Callable, a: int, b: int, to: int) -> Step:
    """An instruction of two scalar i64. Those that addresses are made of are written out."""

    def add(env: Environment) -> None:
        x = env[a] + env[b]
        env[to] = x if -_HALF <= x < _HALF else _wrap(x)

    def mul(env: Environment) -> None:
        x = env[a] * env[b]
        env[to] = x if -_HALF <= x < _HALF else _wrap(x)

    def other(env: Environment) -> None:
        env[to] = f(env[a], env[b])

    return {"add": add, "mul": mul}.get(name, other)


class NestRun:
    """Runs functions on buffers, given as bytes."""

    def __init__(self, buffers: Sequence[np.ndarray], scratch: np.ndarray, observe: Observer | None = None):
        self._memories, self._observe = [Memory(m) for m in (*buffers, scratch)], observe
        self._compiled: dict[int, _Compiled] = {}

    def call(self, f: Function, task: int) -> None:
        made = self._compiled.get(id(f))
        if made is None:
            made = self._compiled[id(f)] = _Compiled(f, self._observe)
        env: Environment = [None] * made.size
        for p, v in zip(made.parameters, (*map(Pointer, self._memories), task), strict=True):
            env[p] = v
        with np.errstate(all="ignore"):
            for step in made.steps:
                step(env)


def run(
    lowered: Lowered, kernel: Kernel, arrays: list[np.ndarray], reverse: bool = False, observe: Observer | None = None
) -> None:
    """Runs every task of every launch on the kernel's buffers, in place; `reverse` takes the tasks backwards."""
    buffers = []
    for array, buffer in zip(arrays, kernel.buffers, strict=True):
        assert array.shape == buffer.shape and array.dtype == buffer.dtype.numpy, (array.shape, buffer.shape)
        assert array.flags.c_contiguous
        buffers.append(array.reshape(-1).view(np.uint8))
    workspace = np.full(lowered.workspace, 0xFF, np.uint8)
    for launch in lowered.launches:
        scratch = np.full(launch.function.scratch_bytes, 0xFF, np.uint8)
        runner = NestRun([*buffers, workspace], scratch, observe)
        order = range(launch.tasks)
        for task in reversed(order) if reverse else order:
            runner.call(launch.function, task)
