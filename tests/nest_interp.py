"""A slow interpreter of loop nests on NumPy: runs what a pattern lowered without any code generator.

It is strict where machine code is not: an access outside its buffer raises, and lanes that nothing defines hold
rubbish.
"""

from __future__ import annotations

import math

import numpy as np

from einsmith.kernels.pattern import Lowered
from einsmith.loops.nest import If, Loop, Op
from einsmith.plan.kernel import Kernel

_NUMPY = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "i1": np.bool_, "u8": np.uint8, "i8": np.int8,
    "i16": np.int16, "i32": np.int32, "i64": np.int64,
}  # fmt: skip
_BYTES = {k: np.dtype(v).itemsize for k, v in _NUMPY.items()}


class Fault(AssertionError):
    """An access outside its buffer, or a trap."""


class Pointer:
    def __init__(self, memory: np.ndarray, at: int = 0):
        self.memory, self.at = memory, at

    def view(self, elem: str, index: int) -> np.ndarray:
        size = _BYTES[elem]
        start = self.at + int(index) * size
        if start < 0 or start + size > self.memory.size:
            raise Fault(f"access at byte {start} of {self.memory.size}")
        return self.memory[start : start + size].view(_NUMPY[elem])


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.asarray(x).dtype])(x)


def _divided(function, a, b):
    """Integers over zero are zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return function(a, b)


_MATH = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum,
    "neg": np.negative, "pow": np.power, "exp": np.exp, "log": np.log, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
    "sqrt": np.sqrt, "abs": np.abs, "sign": np.sign, "floor": np.floor, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(x.dtype), "erf": _erf, "any": np.any,
    "sigmoid": lambda x: (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype),
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype),
    "select": lambda c, a, b: np.where(c, a, b).astype(a.dtype),
}  # fmt: skip


class _Run:
    def __init__(self, buffers: list[np.ndarray], scratch: np.ndarray):
        self.buffers, self.scratch = buffers, scratch
        self.env: dict[int, object] = {}

    def call(self, f, task: int) -> None:
        self.env = {v.id: Pointer(m) for v, m in zip(f.buffers, self.buffers, strict=True)}
        self.env[f.scratch.id] = Pointer(self.scratch)
        self.env[f.task.id] = np.int64(task)
        self.block(f.body)

    def get(self, v):
        if v is None:
            return None
        return self.env[v.id]

    def block(self, body) -> None:
        for x in body:
            if isinstance(x, Loop):
                state = [self.get(v) for v in x.init]
                for i in range(int(self.get(x.lo)), int(self.get(x.hi)), x.step):
                    self.env[x.var.id] = np.int64(i)
                    self.env.update((c.id, v) for c, v in zip(x.carried, state, strict=True))
                    self.block(x.body)
                    state = [self.get(v) for v in x.next]
                self.env.update((r.id, v) for r, v in zip(x.results, state, strict=True))
            elif isinstance(x, If):
                if bool(self.get(x.cond)):
                    self.block(x.body)
            else:
                self.op(x)

    def op(self, x: Op) -> None:
        a = [self.get(v) for v in x.args]
        type = x.result.type if x.result is not None else None
        out = self.compute(x, a, type)
        if x.result is None:
            return
        if isinstance(out, Pointer):
            assert type.elem == "ptr"
        else:
            out = np.asarray(out)
            assert out.dtype == _NUMPY[type.elem], (x.name, out.dtype, type)
            assert out.shape == ((type.lanes,) if type.lanes else ()), (x.name, out.shape, type)
            out = out if type.lanes else out[()]
        self.env[x.result.id] = out

    def compute(self, x: Op, a: list, type):
        name = x.name
        dtype = _NUMPY.get(type.elem) if type else None
        if name == "const":
            return np.full(type.lanes, x.attrs[0], dtype) if type.lanes else dtype(x.attrs[0])
        if name == "literal":
            return np.array(x.attrs[0], dtype)
        if name == "iota":
            return np.arange(type.lanes, dtype=dtype)
        if name == "splat":
            return np.full(type.lanes, a[0], dtype)
        if name == "floordiv":
            return _divided(np.floor_divide, *a)
        if name == "mod":
            return _divided(np.mod, *a)
        if name in _MATH:
            return _MATH[name](*a)
        if name == "cast":
            return np.asarray(a[0] != 0) if type.elem == "i1" else np.asarray(a[0]).astype(dtype)
        if name == "shuffle":
            both = np.concatenate([a[0], a[1]])
            rubbish = np.asarray(99).astype(dtype)
            return np.array([rubbish if i < 0 else both[i] for i in x.attrs[0]], dtype)
        if name == "extract":
            return a[0][int(a[1]) if len(a) > 1 else x.attrs[0]]
        if name == "insert":
            out = a[0].copy()
            out[x.attrs[0]] = a[1]
            return out
        if name == "load":
            return self.load(a[0], int(a[1]) + np.arange(type.lanes or 1), type, a[2], a[3])
        if name == "gather":
            return self.load(a[0], a[1], type, a[2], None)
        if name in ("store", "stream"):
            self.store(a[0], int(a[1]) + np.arange(np.size(a[2])), a[2], a[3] if len(a) > 3 else None)
        elif name == "scatter":
            offsets = a[1] if a[3] is None else a[1][a[3]]
            assert len(set(offsets.tolist())) == len(offsets), "a scatter stores twice at one place"
            self.store(a[0], a[1], a[2], a[3])
        elif name == "address":
            return Pointer(a[0].memory, a[0].at + x.attrs[0])
        elif name == "advance":
            return Pointer(a[0].memory, a[0].at + int(a[1]) * _BYTES[x.attrs[0]])
        elif name not in ("prefetch", "barrier"):
            raise NotImplementedError(name)
        return None

    def load(self, ptr, offsets, type, mask, other):
        n = type.lanes or 1
        mask = np.broadcast_to(True if mask is None else mask, n)
        out = np.zeros(n, _NUMPY[type.elem]) if other is None else np.broadcast_to(other, n).copy()
        for i in range(n):
            if mask[i]:
                out[i] = ptr.view(type.elem, offsets[i])[0]
        return out if type.lanes else out[0]

    def store(self, ptr, offsets, value, mask) -> None:
        value = np.atleast_1d(value)
        elem = next(k for k, v in _NUMPY.items() if v == value.dtype)
        mask = np.broadcast_to(True if mask is None else mask, value.size)
        for i in range(value.size):
            if mask[i]:
                ptr.view(elem, offsets[i])[0] = value[i]


def run(lowered: Lowered, kernel: Kernel, arrays: list[np.ndarray], reverse: bool = False) -> None:
    """Runs every task of every launch on the kernel's buffers, in place; `reverse` takes the tasks backwards."""
    buffers = []
    for array, buffer in zip(arrays, kernel.buffers, strict=True):
        assert array.shape == buffer.shape and array.dtype == buffer.dtype.numpy, (array.shape, buffer.shape)
        assert array.flags.c_contiguous
        buffers.append(array.reshape(-1).view(np.uint8))
    workspace = np.full(lowered.workspace, 0xFF, np.uint8)
    with np.errstate(all="ignore"):
        for launch in lowered.launches:
            scratch = np.full(launch.function.scratch_bytes, 0xFF, np.uint8)
            runner = _Run([*buffers, workspace], scratch)
            order = range(launch.tasks)
            for task in reversed(order) if reverse else order:
                runner.call(launch.function, task)
