"""Exported functions of tensors against the same functions, compiled here."""

from __future__ import annotations

import copy
import pickle
import random
import shutil
import sys

import numpy as np
import pytest

import einsmith as es
from einsmith.base.trees import flatten
from einsmith.export import library as loader
from tests.export.common import batch, call, compiler, small
from tests.fuzz.generate import Generator


@pytest.fixture(autouse=True)
def _tools():
    compiler()


def exported(folder, f, *example, **options) -> es.Library:
    return es.load_library(es.export(f, folder / "out", *example, **options))


def test_nested_arguments_and_results(tmp_path, rng) -> None:
    def f(pair, c):
        return {"sum": pair[0] @ pair[1] + c, "parts": (pair[0] * 2, es.sum(pair[1]))}

    a, b = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((7, 4)).astype(np.float32)
    library = exported(tmp_path, es.jit(f), (a, b), 0.5, name="fn")
    arguments = library.manifest["functions"][0]["arguments"]
    assert [x["name"] for x in arguments] == ["pair_0", "pair_1", "c"]
    want = es.jit(f)((a, b), 0.25)
    got = library(a, b, 0.25)
    for x, y in zip(got, [want["sum"], *want["parts"]], strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("f", "library", "arguments"),
    [
        (lambda a, b: a * b, "function", ["a", "b"]),
        (es.op("Y[i] = X[i]*W[i]", inputs="W, X", name="Gate"), "gate", ["W", "X"]),
        (es.nn.Linear(3, 3), "linear", ["input"]),
    ],
)
def test_names(f, library, arguments, tmp_path) -> None:
    made = exported(tmp_path, f, *[np.ones(3, np.float32)] * len(arguments))
    assert made.name == library
    assert [x["name"] for x in made.manifest["functions"][0]["arguments"]] == arguments


def test_arguments_by_name(tmp_path) -> None:
    library = exported(tmp_path, es.op("y[i,j] = a[i] - b[j]", name="differences"), np.ones(2), np.ones(3))
    a, b = np.arange(2.0), np.arange(3.0)
    for got in (library(a, b=b), library(b=b, a=a)):
        np.testing.assert_array_equal(got, a[:, None] - b)
    for given, named in (((a,), {"c": b}), ((a, b), {"b": b}), ((), {"a": a})):
        with pytest.raises(es.ShapeError, match="differences takes a, b; given"):
            library(*given, **named)


def test_every_type(tmp_path) -> None:
    types = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
    arrays = [np.arange(6).reshape(2, 3).astype(t) for t in types]
    library = exported(tmp_path, lambda *xs: tuple(x[::-1] for x in xs), *arrays, name="turn")
    for got, x in zip(library(*arrays), arrays, strict=True):
        np.testing.assert_array_equal(got, x[::-1])
        assert got.dtype == x.dtype
    with pytest.raises(es.ShapeError, match="x0 is float64; it must be bool"):
        library(*(a.astype(np.float64) for a in arrays))


def test_results_that_are_no_computation(tmp_path, rng) -> None:
    """An argument, one twice, constants, a part of another result."""
    a = rng.standard_normal((3, 4))
    table = rng.standard_normal((3, 4))

    def f(x):
        y = x * 2
        return x, y, y, table, y[1:], table[0]

    for x, y in zip(exported(tmp_path, f, a)(a), es.jit(f)(a), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_function_without_arguments(tmp_path) -> None:
    library = exported(tmp_path, lambda: es.compute((3,), lambda i: i * 2.0), name="even")
    np.testing.assert_array_equal(library(), [0, 2, 4])


def test_a_model_and_its_weights(tmp_path) -> None:
    model = small().model.eval()
    library = exported(tmp_path, model, batch()[0])
    assert library.name == "small" and library.manifest["functions"][0]["function"] == "small_call"
    np.testing.assert_array_equal(library(batch()[0]), model(batch()[0]))
    assert library.state_dict().keys() == model.state_dict().keys()
    with pytest.raises(es.ShapeError, match="no such call"):
        library.step(*batch())


def test_state_that_a_function_changes(tmp_path) -> None:
    """A model in training mode: running statistics change, and dropout draws anew at each call, as it goes on here."""
    model = small().model
    es.manual_seed(5)
    library = exported(tmp_path, model, batch()[0])
    drawn = []
    for n in range(3):
        drawn.append(library(batch()[0]))
        np.testing.assert_array_equal(drawn[n], model(batch()[0]))
    assert (drawn[0] != drawn[1]).any()
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(library.state_dict()[name], array)


def test_loops_that_end_early(tmp_path) -> None:
    """The bounds of a loop are data."""
    f = es.op("h[t] = where(t > 0, h[t-1], 1.0)*x[t]")
    x = np.linspace(0.5, 1.5, 40)
    np.testing.assert_array_equal(exported(tmp_path, f, x, name="h")(x), f(x))


def test_the_loader_needs_numpy_alone(tmp_path) -> None:
    es.export(lambda a: a * 2, tmp_path / "out", np.arange(3.0), name="twice")
    shutil.copy(loader.__file__, tmp_path / "loader.py")
    code = (
        "import sys; sys.path.insert(0, '.'); import numpy, loader; print(loader.Library('out')(numpy.arange(3.0)));"
        "assert not {'einsmith', 'llvmlite', 'safetensors'} & set(sys.modules)"
    )
    assert call([sys.executable, "-I", "-c", code], cwd=tmp_path).stdout.strip() == "[0. 2. 4.]"


def test_a_closed_library_says_so(tmp_path) -> None:
    library = exported(tmp_path, lambda a: a * 2, np.arange(3.0), name="twice")
    library.close()
    library.close()
    with pytest.raises(es.LibraryError, match="twice is closed"):
        library(np.arange(3.0))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("seed", range(102, 108))
def test_random_formulas_and_their_gradients(tmp_path, seed) -> None:
    case = Generator(random.Random(seed).randrange).case()
    f, arrays = case.function(), case.arrays()
    floats = tuple(n for n, a in enumerate(arrays) if a.dtype.kind == "f")

    def values(*xs):
        found = f(*xs, **case.parameters)
        return found if isinstance(found, tuple) else (found,)

    def total(*xs):
        return sum((es.sum(x) for x in values(*xs) if x.dtype.is_float), es.sum(values(*xs)[0] * 0.0))

    def both(*xs):
        return values(*xs), es.grad(total, floats)(*xs) if floats and not case.special else ()

    library = exported(tmp_path, both, *arrays, name="both")
    wanted = flatten(es.jit(both)(*arrays))[0]
    got = library(*arrays)
    for x, y in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_library_says_how_it_is_copied(how, tmp_path, rng) -> None:
    """Two objects with one handle would free it twice."""
    x = rng.normal(size=5)
    library = exported(tmp_path, lambda x: 2 * x, x)
    with pytest.raises(es.LibraryError, match=r"neither copied nor pickled; write its tensors with save\(path\)"):
        how(library)
    library.save(tmp_path / "held")
    np.testing.assert_array_equal(es.load_library(tmp_path / "out", tmp_path / "held")(x), library(x))
