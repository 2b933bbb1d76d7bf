"""Training with activations of 16 bits: what is stored in what, how near it is to float32, and what is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.base.errors import ArgumentError, EinsmithWarning
from einsmith.ir.evaluator import evaluate
from einsmith.ir.nodes import Apply, Compute, Piece, Reduce, nbytes, postorder
from einsmith.ir.views import is_view
from einsmith.kernels.contraction.words import narrow
from einsmith.schedule.contraction_problem import problems
from tests.caches import forget

pytestmark = pytest.mark.filterwarnings("ignore:precision=:einsmith.base.errors.EinsmithWarning")


class Convolutional(es.nn.Module):
    def __init__(self):
        self.conv1, self.bn = es.nn.Conv2d(3, 16, 3, padding=1), es.nn.BatchNorm2d(16)
        self.conv2, self.pool, self.head = es.nn.Conv2d(16, 24, 3, padding=1), es.nn.MaxPool2d(2), es.nn.Linear(600, 10)

    def forward(self, x):
        x = self.pool(es.functional.relu(self.bn(self.conv1(x))))
        return self.head(es.functional.relu(self.conv2(x)).flatten(1)[:, :600])


class Attending(es.nn.Module):
    def __init__(self):
        self.table = es.nn.Embedding(40, 32)
        self.layer = es.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = es.nn.Linear(32, 40)

    def forward(self, tokens):
        return self.head(self.layer(self.table(tokens))).mean(1)


class Recurrent(es.nn.Module):
    def __init__(self):
        self.table, self.lstm, self.head = es.nn.Embedding(40, 24), es.nn.LSTM(24, 32), es.nn.Linear(32, 40)

    def forward(self, tokens):
        return self.head(self.lstm(self.table(tokens))[0][-1])


def make(kind: type, seed: int = 0):
    es.nn.manual_seed(seed)
    rng = np.random.default_rng(seed)
    if kind is Convolutional:
        return kind(), (rng.standard_normal((16, 3, 10, 10)).astype(np.float32), rng.integers(0, 10, 16))
    tokens = rng.integers(0, 40, (12, 16))
    return kind(), (tokens, rng.integers(0, 40, 12 if kind is Attending else 16))


def step_of(kind: type, precision, **settings):
    model, batch = make(kind)
    return es.TrainStep(
        model, es.functional.cross_entropy, es.optim.Adam(lr=0.003), precision=precision, **settings
    ), batch


def program(step):
    (entry,) = step.compiler.programs.items()
    return entry[1]


NETWORKS = [Convolutional, Attending, Recurrent]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_losses_are_near_those_of_float32(kind, precision):
    (plain, batch), (narrow, _) = step_of(kind, "fp32"), step_of(kind, precision)
    wanted, got = ([float(s(*batch)) for _ in range(30)] for s in (plain, narrow))
    assert wanted[-1] < 0.8 * wanted[0]
    assert got != wanted
    np.testing.assert_allclose(got, wanted, rtol=0.05 if precision == "bf16" else 0.01, atol=0.02)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", NETWORKS)
def test_what_is_stored_in_what(kind):
    step, batch = step_of(kind, "bf16")
    step(*batch)
    graph = program(step).graph
    nodes = [n for n in postorder(graph.roots) if isinstance(n, Compute) and len(n.template.dtypes) == 1]
    products = [n for n in nodes if any(min(p.sizes[1:]) > 1 for p in problems(n.template) or ())]
    assert products
    for n in products:
        for p in problems(n.template) or ():
            if min(p.sizes[1:]) > 1:
                assert all(narrow(o.expr, dt.bf16) is not None for o in p.operands), p.term
    for n in nodes:
        sums = [p.body for p in n.template.parts if isinstance(p, Piece) and isinstance(p.body, Reduce)]
        if any(x.combiner == "sum" for x in sums):
            assert n.dtype is not dt.bf16  # sums are of float32, whatever rounds them afterwards
    assert all(t.dtype is p.dtype for p, t in graph.updates) and all(t.dtype is dt.f32 for t in graph.outputs)
    assert all(a.dtype == np.float32 for a in (p.data for p in step.model.parameters()))


def test_saved_activations_take_half_the_memory():
    def stored(precision):
        step, batch = step_of(Convolutional, precision)
        step(*batch)
        graph = program(step).graph
        backward = [n for n, role in graph.role.items() if role == "backward" and isinstance(n, Compute)]
        saved = {a for n in backward for a in n.args if isinstance(a, Compute) and graph.role[a] == "forward"}
        return sum(nbytes(a) for a in saved if not is_view(a.template))

    assert stored("bf16") <= 0.6 * stored("fp32")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", [Convolutional, Attending])
def test_values_are_those_of_the_rounded_graph(kind):
    step, batch = step_of(kind, "bf16")
    wanted_inputs = None
    run = step.compiler.find_or_compile([np.asarray(a) for a in batch])
    graph = run.graph
    step.parts.set_numbers([np.asarray(a) for a in batch])
    bound = {leaf: array.copy() for leaf, array in run.bound.items()}
    wanted_inputs = [bound[x] if x in bound else np.asarray(batch[i]) for i, x in enumerate_inputs(graph, bound)]
    outputs, _ = evaluate(graph, wanted_inputs)
    loss = step(*batch)
    assert loss == pytest.approx(float(outputs[0]), rel=2e-3)


def enumerate_inputs(graph, bound):
    n = 0
    for x in graph.inputs:
        yield n, x
        n += x not in bound


def test_layers_are_excepted_by_name():
    step, batch = step_of(Convolutional, {"": "bf16", "conv*": "fp32"})
    step(*batch)
    graph = program(step).graph
    products = [p for n in postorder(graph.roots) if isinstance(n, Compute) for p in problems(n.template) or ()]
    rounded = [p for p in products if all(narrow(o.expr, dt.bf16) is not None for o in p.operands)]
    assert len(rounded) == 3  # of the head: its result and two gradients
    bodies = [b for n in postorder(graph.roots) if isinstance(n, Compute) for p in n.template.parts for b in p.bodies]
    assert not any(isinstance(e, Apply) and e.fn == "full_precision" for e in postorder(bodies))
    full, _ = step_of(Convolutional, "fp32")
    assert float(full(*batch)) == pytest.approx(
        float(step_of(Convolutional, {"": "bf16", "*": "fp32"})[0](*batch)), 1e-2
    )


@pytest.mark.parametrize(
    "precision, message",
    [
        ("half", "precision='half' must be one of fp32, tf32, bf16, fp16"),
        ({"head": "fp32"}, "'' must name the model's own precision"),
        ({"": "bf16", "head": "fp16"}, "can be in 'fp32' alone"),
        ({"": "tf32", "head": "fp32"}, "layers can be excepted from 16 bits alone, not from 'tf32'"),
        ({"": "bf16", "haed": "fp32"}, "no layer of Convolutional is named 'haed'"),
    ],
)
def test_what_is_refused(precision, message):
    model, _ = make(Convolutional)
    with pytest.raises(ArgumentError, match=message):
        es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1), precision=precision)
    if isinstance(precision, str):
        with pytest.raises(ArgumentError, match=message):
            es.jit(model, precision=precision)


def test_precision_can_be_changed_between_steps():
    step, batch = step_of(Convolutional, "fp32")
    step(*batch)
    first = program(step)
    step.precision = "bf16"
    step(*batch)
    assert program(step) is not first
    assert any(isinstance(n, Compute) and dt.bf16 in n.template.dtypes for n in postorder(program(step).graph.roots))
    with pytest.raises(ArgumentError, match="must be one of"):
        step.precision = "fp8"
        step(*batch)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("precision", ["bf16", {"": "fp16", "head": "fp32"}])
def test_saved_steps_keep_their_precision(tmp_path, precision):
    step, batch = step_of(Convolutional, precision)
    for _ in range(2):
        step(*batch)
    es.save(step, tmp_path / "run")
    again = es.load(tmp_path / "run", model=make(Convolutional, 1)[0], loss=es.functional.cross_entropy)
    assert again.precision == precision
    assert [step(*batch) for _ in range(3)] == [again(*batch) for _ in range(3)]


def test_compiled_functions_have_a_precision():
    model, batch = make(Convolutional)
    model.eval()
    plain, narrow_ = es.jit(model)(batch[0]), es.jit(model, precision="bf16")(batch[0])
    assert plain.dtype == narrow_.dtype == np.float32
    assert 0 < np.abs(plain - narrow_).max() < 0.05 * np.abs(plain).max()


def test_storage_alone_is_said_once(monkeypatch):
    forget("precisions that are stored only")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            step, batch = step_of(Convolutional, "fp16")
            step(*batch)
    (only,) = [w for w in told if issubclass(w.category, EinsmithWarning)]
    assert "products are computed in float32" in str(only.message)


# ---------------------------------------------------------------------------------------- the scale of float16's loss


def test_an_overflow_halves_the_scale_and_the_batch_is_computed_again():
    """Cotangents beyond 65504 overflow; what is updated is what a smaller scale gives."""
    (step, batch), (other, _) = step_of(Convolutional, "fp16"), step_of(Convolutional, "fp16")
    step.parts.numbers.scaling.scale = 2.0**30
    losses = [step(*batch) for _ in range(3)]
    scale = step.parts.numbers.scaling.scale
    assert 1 < scale < 2.0**30 and step.steps == 3
    other.parts.numbers.scaling.scale = scale
    assert [other(*batch) for _ in range(3)] == losses
    for a, b in zip(step.model.parameters(), other.model.parameters(), strict=True):
        np.testing.assert_array_equal(a.data, b.data)


def test_the_scale_grows_when_nothing_overflows(monkeypatch):
    monkeypatch.setattr("einsmith.training.state.GROWTH_INTERVAL", 3)
    step, batch = step_of(Convolutional, "fp16")
    scale = step.parts.numbers.scaling.scale
    for _ in range(7):
        step(*batch)
    assert step.parts.numbers.scaling.scale == 4 * scale and step.parts.numbers.scaling.steady == 1


def test_small_gradients_do_not_vanish():
    """Of a loss of 1e-9, cotangents are below the least float16 without a scale."""
    model, (x, y) = make(Convolutional)
    before = model.conv1.weight.numpy()
    loss = lambda out, target: es.functional.cross_entropy(out, target) * 1e-9  # noqa: E731
    es.TrainStep(model, loss, es.optim.SGD(lr=1e9), precision="fp16")(x, y)
    assert np.abs(model.conv1.weight.numpy() - before).max() > 1e-4


def test_gradients_that_no_scale_makes_finite_are_an_error():
    model, (x, y) = make(Convolutional)
    loss = lambda out, target: es.functional.cross_entropy(out, target) * 1e9  # noqa: E731
    step = es.TrainStep(model, loss, es.optim.SGD(lr=1e-9), precision="fp16")
    before = model.conv1.weight.numpy()
    with pytest.raises(es.NonFiniteError, match="gradients of step 1, whose loss is .* are not finite in float16"):
        step(x, y)
    np.testing.assert_array_equal(model.conv1.weight.numpy(), before)


@pytest.mark.slow
def test_clipping_and_accumulation_with_a_scale():
    """Gradients are clipped and accumulated after the scale is divided out."""
    (plain, batch), (scaled, _) = (
        step_of(Convolutional, p, clip_grad_norm=0.5, accumulate=2) for p in ("fp32", "fp16")
    )
    wanted, got = ([s(*batch) for _ in range(8)] for s in (plain, scaled))
    np.testing.assert_allclose(got, wanted, rtol=0.01)
    assert scaled.grad_norm == pytest.approx(plain.grad_norm, rel=0.05)


def test_where_float16_is_refused(tmp_path):
    model, batch = make(Convolutional)
    with pytest.raises(ArgumentError, match="scales the loss of one process"):
        es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.1), precision="fp16", deterministic=True)
    step, batch = step_of(Convolutional, "fp16")
    with pytest.raises(ArgumentError, match="which a library cannot"):
        es.export(step, tmp_path / "out", *batch)


@pytest.mark.slow
def test_a_library_keeps_the_precision(tmp_path):
    step, batch = step_of(Convolutional, "bf16")
    es.export(step, tmp_path / "out", *batch)
    library = es.load_library(tmp_path / "out")
    assert [library.step(*batch) for _ in range(3)] == [step(*batch) for _ in range(3)]
