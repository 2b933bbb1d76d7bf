"""Faults of generated code, one of each kind, planted in LLVM IR: a checked run notices each and can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from einsmith.checking import report
from einsmith.checking.kernel_check import KernelFault
from tests.checking.planted import (
    N,
    doubled,
    held,
    loop,
    narrowed,
    pointwise,
    reduction,
    subject,
    where_inside,
)

VECTOR = """  %v{n} = load <16 x float>, ptr {x}, align 4
  %w{n} = fadd <16 x float> %v{n}, %v{n}
  store <16 x float> %w{n}, ptr {y}, align 4
"""


def vectors(second: int) -> str:
    """Two vectors of 16, the second one beginning at an element."""
    more = f"""  %x1 = getelementptr float, ptr %x, i64 {second}
  %y1 = getelementptr float, ptr %y, i64 {second}
"""
    return more + VECTOR.format(n=0, x="%x", y="%y") + VECTOR.format(n=1, x="%x1", y="%y1")


def folded(identity: str, op: str, last: int = N) -> str:
    """A fold of x[0 .. last-1], written to y[0]."""
    text = loop(
        f"""  %a = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %a
  {op}""", last, after="  store float %m, ptr %y",
    )  # fmt: skip
    return text.replace("  %more =", f"  %m = phi float [ {identity}, %entry ], [ %m1, %body ]\n  %more =")


LARGER = "%c = fcmp ogt float %m, %v\n  %m1 = select i1 %c, float %m, float %v"
PLUS = "%m1 = fadd float %m, %v"
TWO_TASKS = "  %from = mul i64 %task, 9\n  %end = add i64 %from, 9\n  %last = {last}\n"
ACCUMULATE = """  %a = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %a
  %b = getelementptr float, ptr %y, i64 %i
  %o = load float, ptr %b
  %w = fadd float %v, %v
  %z = fmul float %o, 0.0
  %s = fadd float %w, %z
  store float %s, ptr %b"""
THROUGH_SCRATCH = """  %a = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %a
  %t = getelementptr float, ptr %scratch, i64 %i
  store float %v, ptr %t
  %u = load float, ptr %t
  %w = fadd float %u, %u
  %b = getelementptr float, ptr %y, i64 %i
  store float %w, ptr %b"""
NARROWING = """define void @f(ptr %buffers, ptr %scratch, i64 %task) {{
  %x = load ptr, ptr %buffers
  %second = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %second
  %a = load <16 x i32>, ptr %x, align 4
  %b = trunc <16 x i32> %a to <16 x i8>
  store <16 x i8> %b, ptr %y, align 1
  %x1 = getelementptr i32, ptr %x, i64 16
  %y1 = getelementptr i8, ptr %y, i64 16
  %c = load i32, ptr %x1, align 4
  {store}
  ret void
}}
"""
# What LLVM 22.1 makes of a truncation and a masked store of one lane: all four bytes are stored.
ONE_LANE_AS_A_WORD = NARROWING.format(store="store i32 %c, ptr %y1, align 1")
ONE_LANE = NARROWING.format(store="%d = trunc i32 %c to i8\n  store i8 %d, ptr %y1, align 1")


def two_parts(last: str) -> str:
    """Sums of the two halves of x by two tasks into the workspace, and their sum by a third."""
    part = loop(
        """  %a = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %a
  %m1 = fadd float %m, %v""", "%last", "%from", TWO_TASKS.format(last=last),
        "  %t = getelementptr float, ptr %work, i64 %task\n  store float %m, ptr %t", "part",
    ).replace("  %more =", "  %m = phi float [ 0.0, %entry ], [ %m1, %body ]\n  %more =")  # fmt: skip
    total = """define void @total(ptr %buffers, ptr %scratch, i64 %task) {
  %second = getelementptr ptr, ptr %buffers, i64 1
  %y = load ptr, ptr %second
  %third = getelementptr ptr, ptr %buffers, i64 2
  %work = load ptr, ptr %third
  %w1 = getelementptr float, ptr %work, i64 1
  %a = load float, ptr %work
  %b = load float, ptr %w1
  %s = fadd float %a, %b
  store float %s, ptr %y
  ret void
}
"""
    return part + total


REMAINDER = "call i64 @llvm.smin.i64(i64 %end, i64 17)"
PARTS = {"tasks": (("part", 2), ("total", 1)), "workspace": 64}
BY_TASKS = "  %from = mul i64 %task, {share}\n  %end = add i64 %from, {share}\n  %last = " + REMAINDER + "\n"

RIGHT = [
    (pointwise(), loop(doubled()), {}),
    (pointwise(), loop("", 0, after=vectors(1)), {}),
    (narrowed(), ONE_LANE, {}),
    (reduction("max"), folded("0xFFF0000000000000", LARGER), {}),
    (reduction("sum"), folded("0.0", PLUS), {}),
    (reduction("sum"), two_parts(REMAINDER), PARTS),
    (pointwise(), loop(THROUGH_SCRATCH), {"scratch": 4 * N}),
    (pointwise(), loop(doubled(), "%last", "%from", BY_TASKS.format(share=9)), {"tasks": (("f", 2),), "threads": 2}),
]

WRONG = {
    "a store one element too far": (pointwise(), loop(doubled(), after="  %e = getelementptr float, ptr %y, i64 17\n"
                                                      "  store float 0.0, ptr %e"), {}, "behind the end"),
    "a store before the beginning": (pointwise(), loop(doubled(), after="  %e = getelementptr float, ptr %y, i64 -1\n"
                                                       "  store float 0.0, ptr %e"), {}, "before the beginning"),
    "a read beyond the end": (pointwise(), loop(doubled(), after="  %e = getelementptr float, ptr %x, i64 17\n"
                                                "  %q = load volatile float, ptr %e"), {}, "behind the end"),
    "a read before the beginning": (pointwise(), loop(doubled(), after="  %e = getelementptr float, ptr %x, i64 -1\n"
                                                      "  %q = load volatile float, ptr %e"), {}, "before the beg"),
    "a store to an input": (pointwise(), loop(doubled(), after="  store float 0.0, ptr %x"), {}, "must not write"),
    "a read before the write": (pointwise(), loop(ACCUMULATE), {}, "before it is written"),
    "a wrong tail mask": (pointwise(), loop(doubled(), N - 1), {}, "differ from run to run"),
    "a dropped mask": (pointwise(), loop("", 0, after=vectors(16)), {}, "behind the end"),
    "a dropped condition": (where_inside(), loop(doubled().replace("fadd float %v, %v", "fadd float %v, 0.0")), {},
                            "not the evaluator's"),
    "a wrong identity of a maximum": (reduction("max"), folded("0.0", LARGER), {}, "not the evaluator's"),
    "a wrong identity of a sum": (reduction("sum"), folded("1.0", PLUS), {}, "not the evaluator's"),
    "a sum that leaves out the last": (reduction("sum"), folded("0.0", PLUS, N - 1), {}, "not the evaluator's"),
    "a wrong remainder of a split": (reduction("sum"), two_parts("add i64 %from, 8"), PARTS, "not the evaluator's"),
    "too little scratch": (pointwise(), loop(THROUGH_SCRATCH), {"scratch": 64}, "of its scratch"),
    "too small a workspace": (reduction("sum"), two_parts(REMAINDER), {**PARTS, "workspace": 4}, "of its workspace"),
    "tasks that overlap": (pointwise(), loop(doubled(), "%last", "%from", BY_TASKS.format(share=8)),
                           {"tasks": (("f", 2),)}, "differ from run to run"),
    "one lane stored as a word": (narrowed(), ONE_LANE_AS_A_WORD, {}, "behind the end"),
}  # fmt: skip


def with_declarations(text: str) -> str:
    return text + "\ndeclare i64 @llvm.smin.i64(i64, i64)\n"


@pytest.mark.parametrize("case", range(len(RIGHT)))
def test_a_kernel_without_a_fault_passes(case, rng):
    kernel, text, more = RIGHT[case]
    report.check_thoroughly(subject(kernel, with_declarations(text), **more), held(kernel, rng))


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_noticed(name, rng):
    kernel, text, more, message = WRONG[name]
    with pytest.raises(KernelFault, match=message):
        report.check_thoroughly(subject(kernel, with_declarations(text), **more), held(kernel, rng))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ["a read beyond the end", "a wrong identity of a maximum", "too little scratch"])
def test_the_folder_of_a_fault_shows_it_again(name, rng, tmp_path, monkeypatch):
    """By itself, in another process; lowered anew, the kernel is right."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    kernel, text, more, message = WRONG[name]
    it, buffers = subject(kernel, with_declarations(text), **more), held(kernel, rng)
    with pytest.raises(KernelFault) as found:
        report.check_thoroughly(it, buffers)
    error = report.kernel_fault(it, buffers, found.value, "3: planted")
    assert "kernel 3: planted" in str(error) and "x0[" in str(error)
    (where,) = (tmp_path / "faults").iterdir()
    assert not [p for p in where.iterdir() if p.suffix in (".pkl", ".pickle")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "EINSMITH_CHECK": "0"}

    def again(*options: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, str(where / "reproduce.py"), *options], capture_output=True, text=True,
                              env=environment, timeout=120, cwd=tmp_path)  # fmt: skip

    shown = again()
    assert shown.returncode != 0 and "CheckError" in shown.stderr and message in shown.stderr
    anew = again("--anew")
    assert anew.returncode == 0 and "no fault" in anew.stdout, anew.stderr


def test_other_machine_code_is_a_second_opinion(rng, monkeypatch):
    """Where the evaluator cannot be afforded, the kernel built in other ways is compared."""
    monkeypatch.setattr("einsmith.checking.expected.MOST_VALUES", 0)
    kernel = reduction("sum")
    report.check_thoroughly(subject(kernel, with_declarations(folded("0.0", PLUS))), held(kernel, rng))
    with pytest.raises(KernelFault, match="for AVX2|for SSE|by the pattern|differ from those of"):
        report.check_thoroughly(subject(kernel, with_declarations(folded("1.0", PLUS))), held(kernel, rng))


def test_a_fault_of_the_optimiser_is_noticed(rng, monkeypatch):
    """Machine code that is not what its text says, as a wrong optimisation gives."""
    monkeypatch.setattr("einsmith.checking.expected.MOST_VALUES", 0)
    kernel = pointwise()
    right, wrong = (subject(kernel, with_declarations(loop(doubled(*at)))) for at in ((), ("0",)))
    with pytest.raises(KernelFault, match="unoptimised"):
        report.check_thoroughly(replace(right, launches=wrong.launches), held(kernel, rng))


def test_large_kernels_are_evaluated_in_parts(rng, monkeypatch):
    """The first and the last elements of an output are among those that are compared."""
    monkeypatch.setattr("einsmith.checking.expected.MOST_VALUES", 40)
    monkeypatch.setattr("einsmith.checking.report.others.compare", lambda *a: None)
    kernel = pointwise()
    buffers = held(kernel, rng)
    report.check_thoroughly(subject(kernel, with_declarations(loop(doubled()))), buffers)
    for at in (0, N - 1):
        spoilt = loop(doubled(), after=f"  %e = getelementptr float, ptr %y, i64 {at}\n  store float 3.0, ptr %e")
        with pytest.raises(KernelFault, match="not the evaluator's"):
            report.check_thoroughly(subject(kernel, with_declarations(spoilt)), buffers)
    assert np.isfinite(buffers[0].array(kernel.buffers[0])).all()
