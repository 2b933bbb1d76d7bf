"""Classifier and Regressor: scikit-learn's own checks, networks of one's own, pickles, programs, and bad input."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import einsmith as es

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from einsmith.driver.executable import Executable
from einsmith.sklearn import Classifier, Regressor


def linear(input_shape, n_outputs):
    return es.nn.Linear(input_shape[0], n_outputs)


class Convolutional(es.nn.Module):
    def __init__(self, input_shape, n_outputs):
        self.conv = es.nn.Conv2d(input_shape[0], 4, 3)
        self.head = es.nn.Linear(4, n_outputs)

    def forward(self, x):
        return self.head(es.functional.relu(self.conv(x)).mean((2, 3)))


def fast_sgd(lr):
    return es.optim.SGD(lr=lr, momentum=0.9)


def averaging(lr):
    return es.optim.Rule("p[i] = p[i] - lr*m[i]\n m[i] = b*m[i] + g[i]", lr=lr, b=0.9)


@pytest.fixture
def data(rng):
    x = rng.normal(size=(70, 5)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] > 0).astype(int)


@pytest.fixture
def programs(monkeypatch):
    """A list that gets an entry for each program that is compiled."""
    made, old = [], Executable.__init__

    def noted(self, *args, **kwargs):
        made.append(self)
        old(self, *args, **kwargs)

    monkeypatch.setattr(Executable, "__init__", noted)
    return made


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(Classifier(linear, lr=0.05), marks=pytest.mark.slow),
        pytest.param(Classifier(), marks=pytest.mark.slow),
        pytest.param(Regressor(), marks=pytest.mark.slow),
    ],
    ids=["linear classifier", "classifier", "regressor"],
)
def test_scikit_learns_own_checks(estimator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = [f"{r['check_name']}: {r['exception']!r}" for r in results if r["status"] not in ("passed", "skipped")]
    assert len(results) > 40 and not failed, "\n".join(failed)


def test_a_pipeline_in_a_grid_search() -> None:
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    pipeline = make_pipeline(StandardScaler(), Classifier(random_state=0, batch_size=32))
    search = GridSearchCV(pipeline, {"classifier__epochs": [1, 20]}, cv=2).fit(x, names)
    assert search.best_params_ == {"classifier__epochs": 20} and search.best_score_ > 0.9
    assert list(search.classes_) == ["setosa", "versicolor", "virginica"]
    np.testing.assert_allclose(search.predict_proba(x).sum(axis=1), 1)
    assert search.n_features_in_ == 4


def test_a_network_of_ones_own(rng) -> None:
    x = rng.normal(size=(60, 2, 6, 7))
    y = np.where(x[:, 0].mean((1, 2)) > 0, "above", "below")
    model = Classifier(Convolutional, epochs=3, lr=0.01, random_state=0).fit(x, y)
    assert model.input_shape_ == (2, 6, 7) and model.n_outputs_ == 2 and len(model.loss_curve_) == 3
    assert isinstance(model.module_, Convolutional) and set(model.predict(x)) <= {"above", "below"}


def test_the_loss_and_the_optimizer_are_used(data) -> None:
    x, y = data
    given = []

    def loss(outputs, targets):
        given.append((outputs.shape, targets.shape))
        return es.functional.l1_loss(outputs, targets)

    model = Regressor(linear, epochs=2, loss=loss, optimizer=fast_sgd, lr=0.05, random_state=0).fit(x, y)
    assert given[0] == ((64, 1), (64, 1)) and model.predict(x).shape == (70,)
    assert model.step_.optimizer.momentum == 0.9 and model.step_.optimizer.lr == 0.05
    two = Regressor(linear, epochs=1, random_state=0).fit(x, np.stack([y, y], 1))
    assert two.predict(x).shape == (70, 2)


def test_training_is_that_of_a_training_step(data) -> None:
    """The same network, order and optimizer by hand give the same weights."""
    x, y = data
    model = Classifier(linear, epochs=3, batch_size=32, random_state=5).fit(x, y)
    random = np.random.RandomState(5)
    draw, order, dropout = (int(random.randint(2**31 - 1)) for _ in range(3))
    with es.nn.init.seeded(draw):
        net = es.nn.Linear(5, 2)
    step = es.TrainStep(net, es.functional.cross_entropy, es.optim.Adam(lr=1e-3), seed=dropout)
    curve = step.fit(es.data.batches(x, y.astype(np.int64), 32, seed=order), epochs=3, progress=False)
    assert model.loss_curve_ == curve
    np.testing.assert_array_equal(model.module_.weight.numpy(), net.weight.numpy())


def test_a_seed_gives_one_result_and_leaves_other_draws_alone(data) -> None:
    es.manual_seed(3)
    expected = es.nn.Linear(2, 2).weight.numpy().copy()
    es.manual_seed(3)
    first, second, other = (Classifier(linear, epochs=1, random_state=n).fit(*data) for n in (1, 1, 2))
    np.testing.assert_array_equal(es.nn.Linear(2, 2).weight.numpy(), expected)
    np.testing.assert_array_equal(first.predict_proba(data[0]), second.predict_proba(data[0]))
    assert not np.array_equal(first.predict_proba(data[0]), other.predict_proba(data[0]))


def test_seeded_draws_are_those_of_one_thread() -> None:
    with es.nn.init.seeded(1):
        inside = es.nn.Linear(3, 3).weight.numpy()
        with ThreadPoolExecutor(1) as pool:
            outside = pool.submit(lambda: es.nn.Linear(3, 3).weight.numpy()).result()
        again = es.nn.Linear(3, 3).weight.numpy()
    with es.nn.init.seeded(1):
        np.testing.assert_array_equal(es.nn.Linear(3, 3).weight.numpy(), inside)
        np.testing.assert_array_equal(es.nn.Linear(3, 3).weight.numpy(), again)
    assert not np.array_equal(outside, inside) and not np.array_equal(outside, again)


def test_few_programs_are_compiled(data, programs) -> None:
    x, y = data
    model = Classifier(linear, epochs=3, batch_size=32, random_state=0).fit(x, y)
    assert len(programs) == 2  # 32 samples, and the last 6
    wide = np.concatenate([x, x])
    for n in (1, 2, 31, 32, 33, 70, 140):
        model.predict(wide[:n])
    model.predict_proba(x)
    assert len(programs) == 3


def test_predictions_do_not_depend_on_other_rows(data) -> None:
    x, y = data
    model = Classifier(epochs=1, random_state=0).fit(x, y)
    whole = model.predict_proba(x)
    np.testing.assert_array_equal(np.concatenate([model.predict_proba(x[i : i + 1]) for i in range(70)]), whole)


@pytest.mark.parametrize("optimizer", ["adam", fast_sgd, averaging])
def test_pickles_continue(data, optimizer) -> None:
    x, y = data
    model = Classifier(linear, epochs=2, optimizer=optimizer, lr=0.01, random_state=0).fit(x, y)
    model.step_.optimizer.lr = 0.02 if optimizer != averaging else 0.01
    model.set_params(module=None)  # of the next fit
    state = model.__getstate__()
    assert "step_" not in state and {type(v) for v in state["_files"].values()} == {bytes}
    assert "weights.safetensors" in state["_files"]
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict_proba(x), model.predict_proba(x))
    assert other.step_.optimizer.lr == model.step_.optimizer.lr
    for m in (model, other):
        m.partial_fit(x, y)
    np.testing.assert_array_equal(other.predict_proba(x), model.predict_proba(x))
    assert other.loss_curve_ == model.loss_curve_ and len(other.loss_curve_) == 3
    assert not hasattr(clone(other), "step_") and not hasattr(pickle.loads(pickle.dumps(clone(other))), "step_")


def test_partial_fits_are_epochs(data) -> None:
    x, y = data
    whole = Classifier(linear, epochs=2, random_state=0).fit(x, y)
    parts = Classifier(linear, random_state=0)
    parts.partial_fit(x, y, classes=[0, 1])
    parts.partial_fit(x, y, classes=[0, 1])
    np.testing.assert_array_equal(parts.predict_proba(x), whole.predict_proba(x))
    with pytest.raises(es.ArgumentError, match="differs from that of the first call"):
        parts.partial_fit(x, y, classes=[0, 1, 2])
    with pytest.raises(es.ArgumentError, match="the label 7, which is none of the classes"):
        parts.partial_fit(x, y + 7)
    values = Regressor(linear, random_state=0).partial_fit(x, y)
    with pytest.raises(es.ShapeError, match="earlier targets have shape"):
        values.partial_fit(x, np.stack([y, y], 1))


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"module": es.nn.Linear(5, 2)}, es.KindError, "must be a function .input_shape, n_outputs. that returns"),
        ({"module": "mlp"}, es.KindError, "module='mlp' must be a function"),
        ({"module": lambda shape, n: None}, es.KindError, r"module\(\(5,\), 2\) returned None"),
        ({"module": lambda shape, n: es.nn.Linear(5, 3)}, es.ShapeError, r"\(64, 3\) for 64 samples.*\(64, 2\)"),
        ({"module": lambda shape, n: es.nn.Linear(4, n)}, es.ShapeError, "4"),
        ({"module": lambda shape, n: es.nn.LSTM(5, 2)}, es.ShapeError, "3 outputs; it must give one"),
        ({"epochs": 0}, es.KindError, "epochs=0 must be an integer of at least 1"),
        ({"batch_size": 1.5}, es.KindError, "batch_size=1.5 must be an integer"),
        ({"optimizer": "adamm"}, es.ArgumentError, "no optimizer is named 'adamm'; known: sgd, adam"),
        ({"optimizer": es.optim.SGD(lr=0.1)}, es.KindError, r"functools.partial\(es.optim.SGD"),
        ({"optimizer": functools.partial(es.optim.SGD, momentum=-1)}, es.EinsmithError, "momentum"),
        ({"lr": "fast"}, es.EinsmithError, "lr"),
        ({"loss": 3}, es.EinsmithError, "loss"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_errors_before_anything_trains(data, programs, parameters, error, message) -> None:
    with pytest.raises(error, match=message):
        Classifier(**parameters).fit(*data)
    assert not programs


def test_wrong_data_are_errors(data) -> None:
    x, y = data
    model = Classifier(linear, epochs=1)
    with pytest.raises(NotFittedError):
        model.predict(x)
    for bad, message in ((np.full((70, 5), np.nan), "NaN"), (np.full((70, 5), 1e39), "infinity"), (x[:3], "inconsist")):
        with pytest.raises(ValueError, match=message):
            model.fit(bad, y)
    with pytest.raises(ValueError, match="continuous"):
        model.fit(x, x[:, 0])
    with pytest.raises(es.ArgumentError, match="needs classes="):
        model.partial_fit(x, y)
    with pytest.raises(ValueError, match="4 features"):
        model.fit(x, y).predict(x[:, :4])
    images = np.zeros((8, 2, 5, 5))
    model = Classifier(Convolutional, epochs=1).fit(images, y[:8])
    with pytest.raises(es.ShapeError, match=r"samples of shape \(2, 5, 5\); those of X have shape \(2, 5, 6\)"):
        model.predict(np.zeros((8, 2, 5, 6)))


def test_without_scikit_learn_an_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import einsmith.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "pip install 'einsmith[sklearn]'" in done.stderr
