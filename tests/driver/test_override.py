"""A decision takes the place of the model's choice; one that cannot be followed is an error that says what can."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.base.errors import CompileError
from einsmith.driver.executable import Executable
from einsmith.tuning.kernels import override
from einsmith.tuning.kernels.decisions import name_of
from einsmith.tuning.kernels.override import overriding

MATMUL = "C[i,j] = sum[k](A[i,k]*B[k,j])"


@pytest.fixture
def program(rng):
    """Compiles a product of matrices anew; what it is called with, and what it must be."""
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((37, 53), (53, 41)))

    def compiled() -> Executable:
        traced = trace_call(es.op(MATMUL), (a, b), {}, frozenset())
        return Executable(traced.graph, traced.bind, 1)

    def check(run: Executable) -> None:
        _, (found,) = run((a, b))
        np.testing.assert_allclose(found, a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)

    return compiled, check


def digest_of(run: Executable) -> str:
    return name_of(run.calls[0].kernel)


def test_a_decision_is_followed_inside_and_only_there(program) -> None:
    compiled, check = program
    before = compiled()
    name = digest_of(before)
    for text, config in (
        ("contraction form=Tiled swap=False mr=3 nv=2 a=inline b=panel order=n kc=0 split=1 tm=1 tn=1 windows=()",
         "3x2 a=inline b=panel n-outer tasks 1x1"),
        ("contraction form=Tiled swap=False mr=5 nv=1 a=inline b=inline order=n kc=0 split=1 tm=1 tn=1 windows=()",
         "5x1 a=inline b=inline n-outer tasks 1x1"),
    ):  # fmt: skip
        with overriding({name[:10]: text}):
            run = compiled()
        assert (run.kernels[0].pattern, run.kernels[0].config) == ("contraction", config)
        check(run)
    with overriding({name: "reduction"}):
        run = compiled()
    assert run.kernels[0].pattern == "reduction"
    check(run)
    assert compiled().kernels[0].config == before.kernels[0].config


@pytest.mark.parametrize(
    "text,said",
    [
        ("winograd", "must begin with a pattern that takes .*37, 41.*: contraction, reduction"),
        ("contraction mr=77", "'mr=77' is no gene of contraction on .*: .*pieces.0.mr=1.*28.*; pieces.0.nv=1..8"),
        ("contraction rows=3", "'rows=3' is no gene of contraction"),
        ("contraction nr=2", "'nr=2' is no gene of contraction"),
        ("contraction mr", "'mr' is no gene of contraction"),
        ("contraction form=Tiled mr=28 nv=8", "a tile of 28x8 does not fit the registers; the genes of contr.*: .*nv="),
        ("contraction form=Tiled tm=64", "there are more tasks than tiles"),
        ("contraction form=Direct", "'form=Direct' is no gene of contraction"),
    ],
)
def test_impossible_overrides_are_rejected(program, text, said) -> None:
    compiled, check = program
    name = digest_of(compiled())
    with pytest.raises(CompileError, match=said), overriding({name: text}):
        compiled()
    check(compiled())


def test_kernels_that_do_not_exist(program) -> None:
    compiled, _ = program
    name = digest_of(compiled())
    other = "0123456789" if not name.startswith("0123") else "9876543210"
    with pytest.raises(CompileError, match=f"no kernel {other} was compiled; those that were: {name[:8]} .sum over"):
        with overriding({other: "contraction mr=2"}):
            compiled()
    with pytest.raises(CompileError, match="those that were: none"), overriding({other: "contraction mr=2"}):
        pass
    for wrong in ("", "12", "mr", "12345x"):
        with (
            pytest.raises(CompileError, match="does not name a kernel: 4 or more"),
            overriding({wrong: "contraction mr=2"}),
        ):
            pass
    with pytest.raises(CompileError, match="the override of the kernel"), overriding({name: " "}):
        pass
    with pytest.raises(CompileError, match="has two overrides"):
        with overriding({name[:6]: "reduction", name[:8]: "reduction"}):
            compiled()


def test_an_error_inside_is_the_one_that_is_said(program) -> None:
    with pytest.raises(ZeroDivisionError), overriding({"012345": "contraction mr=2"}):
        1 / 0  # noqa: B018
    assert override.text_of(program[0]().calls[0].kernel) == ""
