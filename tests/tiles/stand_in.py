"""A stand-in for Triton on NumPy, in which printed kernels run. It has Triton's meaning, not NumPy's: `//` and `%` of
integers are towards zero, maxima drop NaN unless they are told to keep it, literals take the type that they meet, what
a masked load without `other` gives is rubbish, tiles have extents that are powers of two and one rank. Programs of a
cooperative function are threads, one of which runs at a time."""

from __future__ import annotations

import linecache
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from einsmith.gpu.tiles.ir import TileFunction
from einsmith.gpu.triton.binary import OPTIONS
from tests.tiles.interp import Find, fused
from tests.tiles.memory import NUMPY, Fault, Memory, product, rounded_to_bf16

RUBBISH = {"f": np.nan, "i": 0x5A, "u": 0x5A, "b": True}


class Type:
    """An element type of Triton's; `elem` is what memory calls it."""

    def __init__(self, elem: str):
        self.elem, self.numpy = elem, np.dtype(NUMPY.get(elem, elem))

    def __repr__(self) -> str:
        return f"tl.{self.elem}"


TYPES = {
    name: Type(elem)
    for name, elem in (
        ("int1", "i1"), ("int8", "i8"), ("uint8", "u8"), ("int16", "i16"), ("int32", "i32"), ("int64", "i64"),
        ("uint16", "uint16"), ("uint32", "uint32"), ("uint64", "uint64"),
        ("float16", "f16"), ("bfloat16", "bf16"), ("float32", "f32"), ("float64", "f64"),
    )
}  # fmt: skip


def tensor(x: Any) -> Tensor:
    """A Tensor, or a literal as Triton types it by itself."""
    if isinstance(x, Tensor):
        return x
    if isinstance(x, bool):
        return Tensor(np.asarray(x), TYPES["int1"])
    if isinstance(x, int):
        return Tensor(np.asarray(x), TYPES["int32" if -(2**31) <= x < 2**31 else "int64"])
    return Tensor(np.asarray(x), TYPES["float32"])


def _pair(x: Any, y: Any, kinds: str = "fiub") -> tuple[np.ndarray, np.ndarray, Type]:
    """Two operands, of which literals take the other's type, in shapes that meet."""
    if isinstance(x, Tensor) and not isinstance(y, Tensor):
        whole = isinstance(y, float) and x.type.numpy.kind != "f"
        y = Tensor(np.asarray(y), TYPES["float32"] if whole else x.type)
    elif isinstance(y, Tensor) and not isinstance(x, Tensor):
        x = Tensor(np.asarray(x), y.type)
    x, y = tensor(x), tensor(y)
    if x.type is not y.type:
        raise Fault(f"{x.type} meets {y.type}: the text leaves a conversion to Triton")
    if x.type.elem in ("f16", "bf16", "u8"):
        raise Fault(f"arithmetic in {x.type}")
    if x.type.numpy.kind not in kinds:
        raise Fault(f"no such operation on {x.type}")
    if x.array.ndim != y.array.ndim and x.array.ndim and y.array.ndim:
        raise Fault(f"tiles of the ranks {x.array.ndim} and {y.array.ndim} meet")
    return x.array, y.array, x.type


def _compared(function: Callable) -> Callable:
    def method(x: Any, y: Any) -> Tensor:
        a, b, _ = _pair(x, y)
        return Tensor(function(a, b), TYPES["int1"])

    return method


def _computed(function: Callable, kinds: str) -> Callable:
    def method(x: Any, y: Any) -> Tensor:
        a, b, type = _pair(x, y, kinds)
        return Tensor(function(a, b), type)

    return method


def _multiplied(x: Any, y: Any) -> Tensor:
    """Which remembers its factors, for a sum that takes them."""
    a, b, type = _pair(x, y, "fiu")
    out = Tensor(np.multiply(a, b), type)
    out.factors = (a, b) if type.numpy.kind == "f" else None
    return out


def _added(sign: int, swap: bool = False) -> Callable:
    """x + sign*y. With a product of floats it is an `fma` where Triton may fuse."""

    def method(x: Any, y: Any) -> Tensor:
        x, y = (y, x) if swap else (x, y)
        a, b, type = _pair(x, y, "fiu")
        for product_, other, of, to in ((x, b, 1, sign), (y, a, sign, 1)):
            if Tensor.fuses and getattr(product_, "factors", None) is not None:
                u, v = product_.factors
                return Tensor(fused(of * u, v, to * other), type)
        return Tensor(np.add(a, b) if sign > 0 else np.subtract(a, b), type)

    return method


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if (b == 0).any() or ((b == -1) & (a == np.iinfo(a.dtype).min)).any():
        raise Fault("a division that is not defined")
    q = np.abs(a.astype(object)) // np.abs(b.astype(object))
    return np.asarray(q * np.where((a < 0) != (b < 0), -1, 1), a.dtype)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers: that of floats is made of a rounded quotient."""
    return a - _truncated(a, b) * b


def _shifted(function: Callable) -> Callable:
    def method(x: Tensor, n: int) -> Tensor:
        return Tensor(function(x.array, x.array.dtype.type(n)), x.type)

    return method


class Tensor:
    """A tile or a scalar; `factors` of a product. fuses: whether Triton makes one `fma` of a product and a sum."""

    fuses = False

    def __init__(self, array: Any, type: Type):
        self.array, self.type = np.asarray(array, type.numpy), type
        self.factors: tuple[np.ndarray, np.ndarray] | None = None
        if any(n & (n - 1) for n in self.array.shape):
            raise Fault(f"a tile of the shape {self.array.shape}")

    __add__, __radd__ = _added(1), _added(1, swap=True)
    __sub__, __rsub__ = _added(-1), _added(-1, swap=True)
    __mul__ = __rmul__ = _multiplied
    __truediv__ = _computed(np.divide, "f")
    __floordiv__, __rfloordiv__ = _computed(_truncated, "i"), _computed(lambda a, b: _truncated(b, a), "i")
    __mod__, __rmod__ = _computed(_remainder, "i"), _computed(lambda a, b: _remainder(b, a), "i")
    __and__, __rand__ = _computed(np.bitwise_and, "iub"), _computed(np.bitwise_and, "iub")
    __or__, __ror__ = _computed(np.bitwise_or, "iub"), _computed(np.bitwise_or, "iub")
    __xor__, __rxor__ = _computed(np.bitwise_xor, "iub"), _computed(np.bitwise_xor, "iub")
    __lt__, __le__, __gt__, __ge__ = (_compared(f) for f in (np.less, np.less_equal, np.greater, np.greater_equal))
    __eq__ = _compared(np.equal)  # type: ignore[assignment]
    __ne__ = _compared(np.not_equal)  # type: ignore[assignment]
    __lshift__, __rshift__ = _shifted(np.left_shift), _shifted(np.right_shift)
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Tensor:
        """0 - x, of which that of +0.0 is +0.0."""
        return Tensor(np.subtract(0, self.array, dtype=self.type.numpy), self.type)

    def __index__(self) -> int:
        assert not self.array.ndim
        return int(self.array)

    def __bool__(self) -> bool:
        if self.array.ndim:
            raise Fault("a tile is asked in Python")
        return bool(self.array)

    def __getitem__(self, index: tuple) -> Tensor:
        if len([i for i in index if i is not None]) != self.array.ndim:
            raise Fault("an index of another rank")
        return Tensor(self.array[index], self.type)

    def to(self, type: Type, bitcast: bool = False) -> Tensor:
        if bitcast and type.elem == "bf16":  # which lies in the upper half of a float32
            return Tensor((self.array.view(np.uint16).astype(np.uint32) << 16).view(np.float32), type)
        if bitcast:
            assert self.array.dtype.itemsize == type.numpy.itemsize
            return Tensor(self.array.view(type.numpy), type)
        if type.elem == "bf16":
            return Tensor(rounded_to_bf16(self.array), type)
        if type.elem == "i1":
            raise Fault("a conversion to a condition")
        if self.array.dtype.kind == "f" and type.numpy.kind in "iu":
            ends = np.iinfo(type.numpy)
            whole = np.trunc(self.array)
            if not ((whole >= float(ends.min)) & (whole < float(ends.max) + 1)).all():
                raise Fault(f"a float that is no {type}")
        return Tensor(self.array.astype(type.numpy), type)


class Pointer:
    """To memory, at offsets."""

    def __init__(self, memory: Memory, at: Any = 0):
        self.memory, self.at = memory, np.asarray(at)

    def __add__(self, offset: Any) -> Pointer:
        offset = tensor(offset)
        if offset.type.elem not in ("i32", "i64"):
            raise Fault(f"an offset of {offset.type}")
        return Pointer(self.memory, offset.array)


class _Stopped(BaseException):
    """Another program has failed."""


class _Crew:
    """The programs of a cooperative function as threads. One runs, until it looks at a counter or ends; then the next
    one does. memories: what they access."""

    def __init__(self, language: _Language, numbers: Sequence[int], memories: Sequence[Memory]):
        self.language, self.memories, self.count = language, memories, len(numbers)
        self.turn = {n: threading.Semaphore(0) for n in numbers}
        self.waiting = deque(numbers)
        self.arrived = self.looks = 0
        self.failure: BaseException | None = None

    def run(self, kernel: Callable[[], None]) -> None:
        def work(number: int) -> None:
            try:
                self.wait(number, 0)
                with np.errstate(all="ignore"):
                    kernel()
                self.looks = 0
            except _Stopped:
                pass
            except BaseException as e:
                self.failure = e
            self.wake()

        threads = [threading.Thread(target=work, args=[n]) for n in self.turn]
        for t in threads:
            t.start()
        self.wake()
        for t in threads:
            t.join()
        if self.failure is not None:
            raise self.failure

    def wake(self) -> None:
        if self.waiting:
            self.turn[self.waiting.popleft()].release()

    def wait(self, number: int, epoch: int) -> None:
        self.turn[number].acquire()
        if self.failure is not None:
            raise _Stopped
        self.language.program, self.language.epoch = number, epoch

    def arrive(self, is_after_lanes: bool) -> None:
        """A program adds to the counter."""
        if not is_after_lanes:
            raise Fault("a program arrives while lanes of it are at work")
        self.arrived, self.looks = (self.arrived + 1) % self.count, 0
        if not self.arrived:
            for m in self.memories:
                m.meet()

    def look(self) -> None:
        """A program looks at the counter: others go on meanwhile."""
        self.looks += 1
        if self.looks > 3 * self.count:
            raise Fault("programs wait at a grid barrier for others that do not come")
        number, epoch = self.language.program, self.language.epoch
        self.waiting.append(number)
        self.wake()
        self.wait(number, epoch)


class _Language:
    """What `tl` is to the kernels of one program. crew: of a cooperative function."""

    class PropagateNan:
        ALL, NONE = object(), object()

    def __init__(self) -> None:
        self.program, self.epoch = 0, 0
        self.crew: _Crew | None = None
        self.is_after_lanes = True
        for name, type in TYPES.items():
            setattr(self, name, type)

    def program_id(self, axis: int) -> Tensor:
        return Tensor(0 if axis else self.program, TYPES["int32"])

    def arange(self, first: int, end: int) -> Tensor:
        return Tensor(np.arange(first, end), TYPES["int32"])

    def full(self, shape: Sequence[int], value: Any, dtype: Type) -> Tensor:
        if not isinstance(value, Tensor) and value == 0:  # of either sign: Triton makes the type's zero
            return Tensor(np.zeros(shape), dtype)
        one = value.to(dtype) if isinstance(value, Tensor) and value.type is not dtype else tensor(value)
        array = (
            rounded_to_bf16(one.array)
            if dtype.elem == "bf16"
            else np.asarray(one.array if isinstance(value, Tensor) else value, dtype.numpy)
        )
        return Tensor(np.broadcast_to(array, shape), dtype)

    def broadcast_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        if x.array.ndim and x.array.ndim != len(shape):
            raise Fault("a broadcast to another rank")
        return Tensor(np.broadcast_to(x.array, shape), x.type)

    def where(self, c: Tensor, x: Any, y: Any) -> Tensor:
        assert tensor(c).type.elem == "i1"
        a, b = tensor(x), tensor(y)
        if a.type is not b.type:
            raise Fault(f"where of {a.type} and {b.type}")
        ranks = {t.array.ndim for t in (tensor(c), a, b)} - {0}
        if len(ranks) > 1:
            raise Fault("where of several ranks")
        return Tensor(np.where(tensor(c).array, a.array, b.array), a.type)

    def maximum(self, x: Any, y: Any, propagate_nan: object = PropagateNan.NONE) -> Tensor:
        return self._extreme(x, y, np.maximum if propagate_nan is self.PropagateNan.ALL else np.fmax)

    def minimum(self, x: Any, y: Any, propagate_nan: object = PropagateNan.NONE) -> Tensor:
        return self._extreme(x, y, np.minimum if propagate_nan is self.PropagateNan.ALL else np.fmin)

    def _extreme(self, x: Any, y: Any, function: Callable) -> Tensor:
        a, b, type = _pair(x, y, "fiu")
        return Tensor(function(a, b), type)

    def abs(self, x: Tensor) -> Tensor:
        return Tensor(np.abs(x.array), x.type)

    def floor(self, x: Tensor) -> Tensor:
        return Tensor(np.floor(x.array), x.type)

    def sqrt(self, x: Tensor) -> Tensor:
        if x.type.elem != "f64":
            raise Fault("an approximate square root")
        return Tensor(np.sqrt(x.array), x.type)

    def sqrt_rn(self, x: Tensor) -> Tensor:
        assert x.type.elem == "f32"
        return Tensor(np.sqrt(x.array), x.type)

    def div_rn(self, x: Any, y: Any) -> Tensor:
        a, b, type = _pair(x, y, "f")
        assert type.elem == "f32"
        return Tensor(a / b, type)

    def fma(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        assert x.type is y.type is z.type
        return Tensor(fused(x.array, y.array, z.array), x.type)

    def dot(self, a: Tensor, b: Tensor, acc: Tensor, input_precision: str = "tf32", out_dtype: Any = None) -> Tensor:
        if a.array.shape[1] < 16 or a.type is not b.type or out_dtype is not acc.type:
            raise Fault(f"a dot of {a.type}{a.array.shape} and {b.type}{b.array.shape}")
        low = a.type.elem == "bf16"
        return Tensor(product(a.array, b.array, acc.array, "ieee" if low else input_precision), acc.type)

    def reduce(self, tiles: Any, axis: int, combine: Callable) -> Any:
        """Halves with halves: a tree, as on a GPU."""
        several = isinstance(tiles, tuple)
        parts = list(tiles) if several else [tiles]
        n = parts[0].array.shape[axis]
        while n > 1:
            n //= 2
            low, high = ([Tensor(np.take(p.array, range(k, k + n), axis), p.type) for p in parts] for k in (0, n))
            made = combine(*low, *high)
            parts = list(made) if several else [made]
        parts = [Tensor(p.array.squeeze(axis), p.type) for p in parts]
        return tuple(parts) if several else parts[0]

    def debug_barrier(self) -> None:
        self.epoch += 1
        self.is_after_lanes = True

    def _lanes(self, p: Pointer, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        on = np.asarray(True) if mask is None else tensor(mask).array
        if on.ndim and on.shape != p.at.shape:
            raise Fault(f"a mask of the shape {on.shape} for offsets of the shape {p.at.shape}")
        on = np.broadcast_to(on, p.at.shape)
        return on, p.at[on]

    def load(self, p: Pointer, mask: Any = None, other: Any = None, cache_modifier: str = "") -> Tensor:
        on, at = self._lanes(p, mask)
        if cache_modifier != ".cg" and self.crew is not None and p.memory.stored_before(at).any():
            raise Fault("the level 1 cache may hold what was there before a grid barrier")
        type = next(t for t in TYPES.values() if t.elem == p.memory.elem)
        rest = RUBBISH[type.numpy.kind] if other is None else tensor(other).array
        out = np.full(p.at.shape, rest, type.numpy)
        out[on] = p.memory.load(at, self.program, self.epoch)
        return Tensor(out, type)

    def _value(self, p: Pointer, value: Any) -> np.ndarray:
        value = tensor(value)
        if value.type.elem != p.memory.elem:
            raise Fault(f"{value.type} is stored as {p.memory.elem}")
        return np.broadcast_to(value.array, p.at.shape)

    def store(self, p: Pointer, value: Any, mask: Any = None) -> None:
        on, at = self._lanes(p, mask)
        self.is_after_lanes = False
        p.memory.store(at, self._value(p, value)[on], self.program, self.epoch)

    def atomic_add(self, p: Pointer, value: Any, mask: Any = None, sem: str = "acq_rel", scope: str = "gpu") -> Tensor:
        """The value before. In a cooperative function programs that add arrive at a grid barrier, and those that add
        nothing look who has arrived."""
        on, at = self._lanes(p, mask)
        if self.crew is None or scope != "gpu" or p.at.ndim:
            raise Fault("an addition in an order")
        if not tensor(value).array:
            if "acq" not in sem:
                raise Fault("a program looks at a counter, and not at what was stored before it")
            self.crew.look()
            return Tensor(p.memory.elements[p.at], TYPES["int32"])
        if sem not in ("release", "acq_rel"):
            raise Fault("a program arrives before what it has stored")
        before = Tensor(p.memory.elements[p.at], TYPES["int32"])
        p.memory.atomic_add(at, self._value(p, value)[on])
        self.crew.arrive(self.is_after_lanes)
        return before


def _of_floats(function: Callable, *elems: str) -> Callable:
    def of(*args: Tensor) -> Tensor:
        assert args[0].type.elem in elems and all(x.type is args[0].type for x in args)
        return Tensor(function(*(x.array for x in args)), args[0].type)

    return of


@contextmanager
def _imported(language: _Language):
    """The modules that a text imports."""
    triton: Any = ModuleType("triton")
    triton.jit, triton.language = (lambda f: f), language
    libdevice = SimpleNamespace(
        sin=_of_floats(np.sin, "f64"), cos=_of_floats(np.cos, "f64"), pow=_of_floats(np.power, "f64"),
        fmod=_of_floats(np.fmod, "f32", "f64"),
    )  # fmt: skip
    extra: Any = ModuleType("triton.language.extra")
    extra.libdevice = libdevice
    names = {"triton": triton, "triton.language": language, "triton.language.extra": extra}
    before = {n: sys.modules.get(n) for n in names}
    sys.modules.update(names)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for n, module in before.items():
            if module is None:
                del sys.modules[n]
            else:
                sys.modules[n] = module


def kernels(text: str, language: _Language) -> dict[str, Any]:
    """The names that a text defines, made with its lines at hand for a traceback."""
    path = f"<triton {hash(text)}>"
    linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    names: dict[str, Any] = {"__name__": path}
    with _imported(language):
        exec(compile(text, path, "exec"), names)
    return names


def _checked(f: TileFunction, memories: Sequence[Memory], signature: Sequence[str]) -> None:
    """Raises a Fault where a promise about an argument does not hold."""
    for n, (p, m, promise) in enumerate(zip(f.parameters, memories, signature, strict=True)):
        _, _, multiple = promise.partition(":")
        if multiple and m.size and m.elements.ctypes.data % int(multiple):
            raise Fault(f"{f.name}: p{n}, {p.elem}, is no multiple of {multiple} bytes")


def run(
    text: str,
    functions: Sequence[TileFunction],
    find: Find,
    order: Callable[[int], Iterable[int]] = range,
    options: Mapping[str, Any] = OPTIONS,
    signatures: Mapping[str, Sequence[str]] = {},
) -> None:  # noqa: B006
    """The text's kernels with the memories of the functions that it was printed from, as `interp.run` does. options:
    what they are compiled with; signatures: what each is promised of its arguments, by name."""
    language = _Language()
    names = kernels(text, language)
    for f in functions:
        memories = [find(p) for p in f.parameters]
        _checked(f, memories, signatures.get(f.name, [""] * len(memories)))
        for m in memories:
            m.begin()
        Tensor.fuses = options.get("enable_fp_fusion", True)
        arguments = list(map(Pointer, memories))
        try:
            if f.cooperative:
                language.crew = _Crew(language, list(order(f.programs)), memories)
                language.crew.run(lambda f=f, arguments=arguments: names[f.name](*arguments))  # type: ignore[misc]
                continue
            for language.program in order(f.programs):
                language.epoch = 0
                with np.errstate(all="ignore"):
                    names[f.name](*arguments)
        finally:
            Tensor.fuses, language.crew = False, None
