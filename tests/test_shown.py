"""What public objects are shown as: by what they are and how they were made, never by their address alone."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from einsmith.optim import lr_scheduler

V = np.ones(4, np.float32)
PAIR = np.ones((2, 2), np.float32)


def scaled(x, n=2, *, by="a"):
    return x * n


def step():
    return es.TrainStep(es.nn.Linear(2, 2), es.functional.mse_loss, es.optim.SGD(lr=0.1))


def called(f, *args):
    f(*args)
    return f


@pytest.mark.parametrize("made,words", [
    (lambda: es.jit(scaled), "<jit of scaled(x, n=2, *, by='a'): 0 programs>"),
    (lambda: called(es.jit(scaled, static_argnames=("n", "by")), V),
     "<jit of scaled(x, n=2, *, by='a'), static by, n: 1 program>"),
    (lambda: called(called(es.jit(scaled), V), V[:2]), "<jit of scaled(x, n=2, *, by='a'): 2 programs>"),
    (lambda: es.jit(es.op("y[i] = 2 * x[i]")), "<jit of y(x[i]) -> y[i]: 0 programs>"),
    (lambda: es.grad(scaled), "<grad of scaled(x, n=2, *, by='a')>"),
    (lambda: es.value_and_grad(scaled, (0, 1)), "<value_and_grad of scaled(x, n=2, *, by='a'), argnums=(0, 1)>"),
    (lambda: es.grad(es.grad(scaled)), "<grad of scaled(x, n=2, *, by='a')>"),
    (lambda: es.vmap(scaled), "<vmap of scaled(x, n=2, *, by='a')>"),
    (lambda: es.vmap(scaled, out_axes=1), "<vmap of scaled(x, n=2, *, by='a'), out_axes=1>"),
    (lambda: es.hessian(scaled), "<hessian of scaled(x, n=2, *, by='a')>"),
    (lambda: es.vjp(scaled, V)[1], "<pullback of scaled(x, n=2, *, by='a')>"),
    (lambda: es.interpret(scaled), "<interpret of scaled(x, n=2, *, by='a')>"),
    (lambda: es.op("y[i] = s * x[i]", s=2), "<operator y(x[i]; s=2) -> y[i]>"),
    (lambda: es.exp, "<function exp at"),
    (lambda: es.sum, "<function sum at"),
    (lambda: es.functional.relu, "<function relu at"),
    (lambda: es.metrics.top_k(3), "top_k(k=3)"),
    (lambda: es.metrics.f1("micro"), "f1(average='micro')"),
    (lambda: es.callbacks.EarlyStopping(patience=2),
     "EarlyStopping(monitor='val_loss', patience=2, min_delta=0.0, mode='min')"),
    (step, "TrainStep(Linear, mse_loss, SGD(lr=0.1), steps=0, epoch=0)"),
    (lambda: es.data.batches(V, V, 3), "Batches(4 samples, 2 batches of 3, seed=None)"),
])  # fmt: skip
def test_words(made, words):
    text = repr(made())
    assert text == words or (words.endswith(" at") and text.startswith(words)), text


class Mine(es.callbacks.Callback):
    """A user's own, whose options are attributes or are not."""

    def __init__(self, every=3, hidden=4):
        self.every, self.kept = every, hidden


def public_objects():
    """One of each class that a user makes or is given."""
    yield from (es.nn.ReLU(), es.nn.Sequential(es.nn.Linear(2, 2)), es.nn.Parameter(V), es.nn.Buffer(V), Mine())
    yield from (kind() for name, kind in es.optim.STANDARD.items())
    yield es.optim.Rule("p[i] = p[i] - lr*g[i]", lr=0.1)
    yield lr_scheduler.StepLR(0.1, 3)
    yield from (es.metrics.accuracy(), es.metrics.r2(), es.metrics.precision())
    yield from (es.callbacks.CSVLog("a.csv"), es.callbacks.Save("a"), es.callbacks.Callback())
    yield from (es.data.batches(V, V, 2), es.data.stream(np.arange(20), 2, 3))
    yield from (es.jit(scaled), es.grad(scaled), es.op("y[i] = x[i]"), step(), step().profile(PAIR, PAIR, repeats=1))
    yield es.nn.Linear(2, 2).load_state_dict(es.nn.Linear(2, 2).state_dict())
    yield es.jit(scaled).plan


@pytest.mark.parametrize("thing", public_objects(), ids=lambda x: type(x).__name__)
def test_nothing_is_shown_by_its_address(thing):
    assert " object at 0x" not in repr(thing) and repr(thing) == repr(thing) != ""


def test_own_callbacks_are_shown_by_what_they_keep():
    assert repr(Mine()) == "Mine(every=3)"
