"""Hooks, paths of parts, lists and dictionaries of parameters."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import einsmith as es
from einsmith import nn
from einsmith.base.errors import ArgumentError, UnknownNameError


class Scaled(nn.Module):
    def forward(self, x, factor=1.0):
        return x * factor


def doubled(module, args, output):
    return output * 2


def test_hooks_change_arguments_and_outputs() -> None:
    m, x = nn.Sequential(Scaled(), nn.ReLU()), np.array([-1.0, 2.0])
    np.testing.assert_array_equal(m(x), [0, 2])
    after = m.register_forward_hook(doubled)
    np.testing.assert_array_equal(m(x), [0, 4])
    before = m[0].register_forward_pre_hook(lambda module, args: args[0] + 5)
    np.testing.assert_array_equal(m(x), [8, 14])
    with m[0].register_forward_pre_hook(lambda m, args, kwargs: (args, {"factor": 10.0}), with_kwargs=True):
        np.testing.assert_array_equal(m(x), [80, 140])
    last = m[0].register_forward_hook(lambda m, args, kwargs, y: y + args[0], with_kwargs=True)
    np.testing.assert_array_equal(m(x), [16, 28])
    for handle in (before, after, last):
        handle.remove()
        handle.remove()
    np.testing.assert_array_equal(m(x), [0, 2])


def test_hooks_are_called_in_order_and_while_tracing(run) -> None:
    m, seen = Scaled(), []
    m.register_forward_hook(lambda *a: seen.append("second"))
    m.register_forward_hook(lambda *a: seen.append("first"), prepend=True)
    m.register_forward_pre_hook(lambda module, args: seen.append((module is m, args[0].shape)))
    for _ in range(3):
        m(np.ones(4))
    assert seen == [(True, (4,)), "first", "second"]
    m(np.ones((5, 4)))
    assert len(seen) == 6
    with pytest.raises(ArgumentError, match="function"):
        m.register_forward_hook(3)
    m.register_forward_pre_hook(lambda m, args, kwargs: args, with_kwargs=True)
    with pytest.raises(ArgumentError, match="args, kwargs"):
        m(np.ones(4))


def test_hooks_belong_to_training_steps(rng) -> None:
    """A hook's tensors are differentiated as forward's are."""
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    plain, hooked = nn.Linear(3, 2, dtype="float64"), nn.Linear(3, 2, dtype="float64")
    hooked.load_state_dict({n: v / 2 for n, v in plain.state_dict().items()})
    hooked.register_forward_hook(doubled)
    steps = [es.TrainStep(m, es.functional.mse_loss, es.optim.SGD(lr=r)) for m, r in ((plain, 0.1), (hooked, 0.025))]
    for _ in range(3):
        a, b = (step(x, y) for step in steps)
        assert a == pytest.approx(b, rel=1e-12)
    np.testing.assert_allclose(plain.weight.data, hooked.weight.data * 2, rtol=1e-12)


def test_copies_keep_hooks_of_their_own() -> None:
    m = Scaled()
    m.register_forward_hook(doubled)
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        handle = other.register_forward_hook(doubled)
        np.testing.assert_array_equal(other(np.ones(2)), [4, 4])
        np.testing.assert_array_equal(m(np.ones(2)), [2, 2])
        handle.remove()
        np.testing.assert_array_equal(other(np.ones(2)), [2, 2])


def test_parts_by_path() -> None:
    m = nn.ModuleDict({"a": nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3))})
    assert m.get_submodule("") is m and m.get_submodule("a.1") is m["a"][1]
    norm = m["a"][1]
    assert m.get_parameter("a.1.weight") is norm.weight and m.get_buffer("a.1.running_mean") is norm.running_mean
    for call, words in ((lambda: m.get_submodule("a.2"), "'2'"), (lambda: m.get_parameter("a.1.scale"), "a.1.scale")):
        with pytest.raises(UnknownNameError, match=words):
            call()
    assert [n for n, _ in m.named_parameters("net")] == ["net.a.1.weight", "net.a.1.bias"]
    assert not list(m.parameters(recurse=False)) and len(list(norm.parameters(recurse=False))) == 2
    m["b"] = norm
    assert len(list(m.named_buffers())) == 3 and len(list(m.named_buffers(remove_duplicate=False))) == 6
    del m["b"]
    visited = []
    m.apply(visited.append)
    assert visited == [m["a"][1], m["a"][0], m["a"], m]


class Held(nn.Module):
    def __init__(self, rng):
        self.rows = nn.ParameterList(rng.normal(size=(3, 4)))
        self.named = nn.ParameterDict({"a": rng.normal(size=4), "b": nn.Parameter(np.ones(4))})

    def forward(self, x):
        for row in self.rows:
            x = x * row
        return x + self.named["a"] - self.named["b"]


def test_lists_and_dictionaries_of_parameters(rng) -> None:
    m, x = Held(rng), rng.normal(size=4)
    assert list(m.state_dict()) == ["rows.0", "rows.1", "rows.2", "named.a", "named.b"]
    assert repr(m.rows) == "ParameterList(0: f64[4], 1: f64[4], 2: f64[4])"

    def wanted():
        out = x.copy()
        for row in m.rows:
            out = out * row.data
        return out + m.named["a"].data - m.named["b"].data

    np.testing.assert_allclose(m(x), wanted(), rtol=1e-12)
    m.rows.append(np.full(4, 3.0))
    m.rows[-2] = np.zeros(4) + 0.5
    np.testing.assert_allclose(m(x), wanted(), rtol=1e-12)
    m.rows += [np.ones(4)]
    assert len(m.rows) == 5 and len(m.rows[1:3]) == 2 and m.rows[1:3][0] is m.rows[1]
    m.named.update({"b": np.zeros(4)})
    np.testing.assert_allclose(m(x), wanted(), rtol=1e-12)
    taken = m.named.pop("b")
    assert not taken.data.any() and list(m.named) == ["a"] and m.named.get("b") is None and "a" in m.named
    assert [n for n, _ in m.named.items()] == ["a"] and len(list(m.named.values())) == len(m.named) == 1
    with pytest.raises(IndexError):
        m.rows[7]


def test_hooks_that_are_always_called_see_what_there_was_when_it_failed() -> None:
    torch = pytest.importorskip("torch", reason="its hooks are the model")

    def told(module, base):
        seen = []

        class Fails(base):
            def forward(self, x):
                if x.shape[0] > 2:
                    raise KeyError("forward")
                return x

        m = Fails()

        def note(name, fails=False):
            def hook(module, args, output):
                seen.append((name, len(args), output is None))
                if fails:
                    raise ValueError(name)

            return hook

        m.register_forward_hook(note("usual"))
        m.register_forward_hook(note("always"), always_call=True)
        m.register_forward_hook(note("raises", fails=True), always_call=True)
        m.register_forward_hook(note("last"), always_call=True)
        for n, error in ((3, KeyError), (2, ValueError)):
            with pytest.raises(error):
                m(module(n))
        return seen

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a hook that raises after an error
        theirs = told(torch.ones, torch.nn.Module)
    with pytest.warns(es.EinsmithWarning, match="Fails with always_call=True raised ValueError: raises") as said:
        assert told(np.ones, nn.Module) == theirs
    assert len(said) == 1, "one hook raises after an error of forward"
