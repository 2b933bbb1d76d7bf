"""Random networks and PyTorch's own samples of operators and modules by torch.compile's backend."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

import einsmith.frontends.torch  # noqa: E402, F401 - registers the backend
from einsmith.frontends.torch_compile import region  # noqa: E402
from tests.frontends.compile_fuzz import network  # noqa: E402
from tests.frontends.compile_samples import Differs, compare, modules, operators, sweep, sweep_modules  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed):
    f, inputs = network(10**9 + seed)
    assert compare(f, inputs) == []


@pytest.mark.thinned(4)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool"])
def test_random_samples_of_operators(dtype):
    """A few of PyTorch's own; `python -m tests.frontends.compile_samples` takes all of them."""
    kind = getattr(torch, dtype)
    chosen = operators(kind)[5 :: 67 if dtype == "float64" else 134]
    said: list[str] = []
    tally = sweep(kind, 1, 0, chosen, said.append)
    assert not tally["wrong"] and not tally["error"], "\n".join(said)
    assert tally["ours"] > tally["in PyTorch"], said


def test_samples_of_some_modules():
    said: list[str] = []
    tally = sweep_modules(torch.float64, 1, modules()[4::31], said.append)
    assert not tally["wrong"] and tally["ours"] > 3, said


@pytest.mark.slow
def test_samples_of_all_modules():
    said: list[str] = []
    tally = sweep_modules(torch.float64, 4, modules(), said.append)
    assert not tally["wrong"] and tally["ours"] >= 0.9 * (tally["ours"] + tally["in PyTorch"]), (tally, said)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "bool", "bfloat16"])
def test_samples_of_all_operators(dtype):
    kind = getattr(torch, dtype)
    said: list[str] = []
    tally = sweep(kind, 3, 1, operators(kind), said.append)
    assert not tally["wrong"] and not tally["error"], "\n".join(said)
    most = 0.85 if dtype == "bool" else 0.9  # of a bool, more of the samples are special functions and complex numbers
    assert tally["ours"] >= most * (tally["ours"] + tally["in PyTorch"]), tally


def test_a_wrong_number_is_seen(monkeypatch):
    """The comparison that the other tests stand on."""
    call = region.Region.__call__
    monkeypatch.setattr(region.Region, "__call__", lambda self, *args: [x * 1.001 for x in call(self, *args)])
    with pytest.raises(Differs):
        compare(lambda x: x.sin(), [randn(5)])
