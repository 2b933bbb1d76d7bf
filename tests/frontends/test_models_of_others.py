"""Models of transformers, timm and torch_geometric train by torch.compile's backend as in eager execution."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="its backend is tested")

from benchmarks.models_of_others import MODELS, get, missing  # noqa: E402
from einsmith.base.errors import ArgumentError, TraceError  # noqa: E402
from tests.frontends import models_of_others  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_in_eager(name):
    if package := missing(name):
        pytest.skip(f"{package} is not installed")
    row = models_of_others.row(name)
    assert not row.failure(), row


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in MODELS if n not in models_of_others.BY_VALUES])
def test_an_imported_model_trains_as_in_eager(name):
    if package := missing(name):
        pytest.skip(f"{package} is not installed")
    row = models_of_others.imported(name)
    assert not row.failure(), row


@pytest.mark.parametrize("name", models_of_others.BY_VALUES)
def test_models_that_drop_edges_by_value_are_rejected(name):
    if package := missing(name):
        pytest.skip(f"{package} is not installed")
    with pytest.raises((ArgumentError, TraceError), match="mask|data-dependent"):
        models_of_others.imported(name)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(MODELS, "none", ("a_package_that_is_not", MODELS["gcn"][1]))
    with pytest.raises(ImportError, match="none is a model of a_package_that_is_not, which is not installed"):
        get("none")


def test_the_comparison_detects_differences():
    """The comparison that the other tests stand on."""
    one, other = torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 1.0, 1.0 + 1e-6], dtype=torch.float64)
    off, where = models_of_others.largest([(1.0, [other, one])], [(1.0, [one, one])], ["a", "b"])
    assert off == pytest.approx(1e-6) and where == "the gradient of a in step 0"
    good = models_of_others.Row("bert", 1e-9, "", 3e-7, 2e-7)
    assert not good.failure()
    for change in ({"double": 1e-6}, {"single": 1e-6}, {"in_pytorch": ("aten.sort",)}, {"double": float("nan")}):
        assert replace(good, **change).failure()
