"""Every public name of torch.nn, torch.nn.functional and torch.nn.init is there, or refused with a reason."""

from __future__ import annotations

import types

import pytest

import einsmith as es
from einsmith.tracing.refused import REFUSED

PLACES = {"torch.nn": es.nn, "torch.nn.functional": es.functional, "torch.nn.init": es.nn.init}
FORMER = {"constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform",
          "xavier_normal", "xavier_uniform"}  # fmt: skip
"""Names of torch.nn.init without an underscore, deprecated since 2018, which PyTorch does not document."""


@pytest.fixture
def listed(torch):
    """Names by module: PyTorch's own classes and functions, and the modules below torch.nn."""
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"the list is that of PyTorch 2.13, and {torch.__version__} is installed")

    def is_own(x) -> bool:
        if isinstance(x, types.ModuleType):
            return x.__name__.startswith("torch.nn.")
        builtin = isinstance(x, types.BuiltinFunctionType)
        return callable(x) and (builtin or (getattr(x, "__module__", None) or "").startswith("torch"))

    modules = {"torch.nn": torch.nn, "torch.nn.functional": torch.nn.functional, "torch.nn.init": torch.nn.init}
    return {
        place: {n for n in dir(m) if not n.startswith("_") and is_own(getattr(m, n))} for place, m in modules.items()
    }


@pytest.mark.parametrize("place", PLACES)
def test_every_name_is_there_or_refused(listed, place) -> None:
    names = listed[place] - (FORMER | {"Tensor"} if place == "torch.nn.init" else set())
    assert len(names) > (10 if place == "torch.nn.init" else 100)
    refused = {n.rpartition(".")[2] for n in REFUSED if n.rpartition(".")[0] == place}
    there = {n for n in names if hasattr(PLACES[place], n)}
    assert names - there == refused, "names that are neither there nor refused, or refused without being PyTorch's"


def test_refused_names_of_torch_are_torch_s(torch) -> None:
    for name in REFUSED:
        place, _, last = name.rpartition(".")
        if place in ("torch", "torch.Tensor"):
            assert hasattr(torch if place == "torch" else torch.Tensor, last), name
            assert not hasattr(es if place == "torch" else es.Tensor, last), name


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_name_says_why_and_what_to_use(name) -> None:
    place, _, last = name.rpartition(".")
    if place == "torch.Tensor":
        return  # of tensors, which tests/lang/test_torch_methods.py asks
    module = es if place == "torch" else PLACES[place]
    reason, instead = REFUSED[name]
    with pytest.raises(AttributeError) as e:
        getattr(module, last)
    assert f"{last!r}: {reason}; use {instead}" in str(e.value)


def test_near_names_are_suggested() -> None:
    with pytest.raises(es.UnknownAttributeError, match="'einsmith.nn' has no attribute 'Liner'; did you mean Linear"):
        _ = es.nn.Liner
    with pytest.raises(es.UnknownAttributeError, match="did you mean softmax"):
        _ = es.functional.sofmax
    with pytest.raises(ImportError, match="cannot import name 'Liner'"):
        exec("from einsmith.nn import Liner")
