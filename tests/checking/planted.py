"""Kernels written by hand in LLVM IR, each wrong in one way, as what a checked run is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsmith.base import dtypes as dt
from einsmith.checking import others
from einsmith.checking.kernel_check import BufferState, CheckedKernel, KernelSource
from einsmith.codegen.cache import native
from einsmith.ir.nodes import Axis, Const, Expr, Read, Reduce, apply, cast, template
from einsmith.schedule.kernel import Kernel
from tests.kernels.samples import kernel_of

N = 17
HEAD = """define void @{name}(ptr %buffers, ptr %scratch, i64 %task) {
entry:
  %x = load ptr, ptr %buffers
  %second = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %second
  %third = getelementptr ptr, ptr %buffers, i64 2
  %work = load ptr, ptr %third
"""
LOOP = """  br label %head
head:
  %i = phi i64 [ {first}, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, {last}
  br i1 %more, label %body, label %out
body:
  %i1 = add i64 %i, 1
{body}
  br label %head
out:
{after}
  ret void
}
"""


def loop(
    body: str, last: int | str = N, first: int | str = 0, before: str = "", after: str = "", name: str = "f"
) -> str:
    """A function that runs `body` for i in first .. last-1."""
    return HEAD.replace("{name}", name) + before + (
        LOOP.replace("{first}", str(first)).replace("{last}", str(last)).replace("{body}", body)
        .replace("{after}", after)
    )  # fmt: skip


def doubled(load: str = "%i", store: str = "%i") -> str:
    """y[store] = 2*x[load]"""
    return f"""  %a = getelementptr float, ptr %x, i64 {load}
  %v = load float, ptr %a
  %w = fadd float %v, %v
  %b = getelementptr float, ptr %y, i64 {store}
  store float %w, ptr %b"""


X = Read(0, (Axis(0),), dt.f32)


def pointwise(n: int = N) -> Kernel:
    """y[i] = x[i] + x[i]"""
    return kernel_of(template((n,), [(dt.f32, (n,))], apply("add", X, X)))


def narrowed(n: int = N) -> Kernel:
    """y[i] = i8(x[i]) of integers"""
    x: Expr = Read(0, (Axis(0),), dt.i32)
    return kernel_of(template((n,), [(dt.i32, (n,))], cast(x, dt.i8)))


def reduction(combiner: str, n: int = N) -> Kernel:
    """y[0] = combiner[k](x[k])"""
    return kernel_of(template((1,), [(dt.f32, (n,))], Reduce(combiner, (n,), (Read(0, (Axis(1),), dt.f32),))))


def where_inside(n: int = N) -> Kernel:
    """y[i] = where(i < n - 1, x[i], 0)"""
    inside = apply("lt", Axis(0), Const(n - 1, dt.i32))
    return kernel_of(template((n,), [(dt.f32, (n,))], apply("where", inside, X, Const(0.0, dt.f32))))


def subject(
    kernel: Kernel,
    text: str,
    tasks: Sequence[tuple[str, int]] = (("f", 1),),
    scratch: int = 0,
    workspace: int = 0,
    threads: int = 1,
) -> CheckedKernel:
    """The text as a kernel's machine code."""
    target = native.host_target()
    source = KernelSource(f'target triple = "{target.triple}"\n{text}', tuple(tasks), scratch, workspace)
    empty = CheckedKernel(kernel, target, (), 0, 0, "planted", "planted", lambda: source, threads)
    return others.compile_subject(empty, source, target, native.jit.OPT, "planted")


def held(kernel: Kernel, rng: np.random.Generator) -> list[BufferState]:
    """Values for what a kernel reads, apart from each other."""
    out = []
    for n, b in enumerate(kernel.buffers):
        array = rng.integers(-90, -5, b.shape) if b.dtype.is_int else -1 - rng.random(b.shape)
        values = array.astype(b.dtype.numpy).reshape(-1).view(np.uint8)
        out.append(BufferState((n + 1) << 40, values, None if n == 0 else np.zeros(values.size, bool)))
    return out
