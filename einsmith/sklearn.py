"""Scikit-learn estimators that train networks of Einsmith: Classifier and Regressor (docs/sklearn.md).

An estimator makes its network from the shapes of the data at `fit`, trains it with a TrainStep, and predicts in batches
of one size, for which one program is compiled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.extmath import softmax
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ImportError as e:
    raise ImportError("einsmith.sklearn needs scikit-learn, 1.6 or newer: pip install 'einsmith[sklearn]'") from e

from einsmith import optim
from einsmith.api.tracing import trace_shapes
from einsmith.base import files
from einsmith.base.arguments import Count, check_arguments, describe, show
from einsmith.base.dtypes import f32
from einsmith.base.errors import ArgumentError, KindError, ShapeError
from einsmith.data.batching import Batches
from einsmith.nn import Flatten, Linear, Module, ReLU, Sequential, init
from einsmith.ops.losses.classes import cross_entropy
from einsmith.ops.losses.regression import mse_loss
from einsmith.training import TrainStep
from einsmith.training.checkpoint import load, save

__all__ = ["Classifier", "Regressor"]

_OPTIMIZERS = {name.lower(): rule for name, rule in optim.STANDARD.items()}
_MIN_WIDTH, _MAX_WIDTH = 128, 1024
"""Fewest and most units of the first hidden layer of the network that is trained without `module`."""
_MAX_SEED = 2**31 - 1


_PARAMETERS = """

    Args:
        module: a function `module(input_shape, n_outputs)` that returns a new es.nn.Module, or a class of them.
            `input_shape` is the shape of a sample, a tuple: (features,) for a table. The network takes float32
            [batch, *input_shape] and returns [batch, n_outputs]. None: two hidden layers with ReLU, the first as wide
            as the next power of two above the number of features and outputs, within 128 and 1024, the second half as
            wide.
        epochs: passes over the data of `fit`.
        batch_size: samples of a training step, and rows of the program that predicts.
        optimizer: a name of es.optim in lower case ("adam", "sgd", "adamw", ...), or a function `optimizer(lr=...)`
            that returns a rule, as `functools.partial(es.optim.SGD, momentum=0.9)`.
        lr: learning rate, or a function of the step's number.
        loss: a function of (outputs, targets), None for es.functional.{loss}. The two are
            {targets}.
        random_state: seed of the initial weights, of the order of the samples, and of dropout.
        threads: worker threads of a training step; None for all cores that the process may use.
        verbose: whether to show the progress of the training.

    Attributes:
        step_: the TrainStep, whose `plan` and `profile` describe its programs.
        module_: the trained network.
        loss_curve_: mean loss of each epoch.
        input_shape_: shape of a sample.
        n_outputs_: number of the network's outputs.
        n_features_in_: extent of X's second axis.{attributes}
"""
"""Descriptions of parameters and attributes in the docstrings of the estimators."""


def _document_parameters(**words: str) -> Callable[[type], type]:
    """Return a decorator that adds the parameters to the docstring of an estimator."""

    def add(estimator: type) -> type:
        estimator.__doc__ = f"{estimator.__doc__}{_PARAMETERS.format(**words)}"
        return estimator

    return add


class _NetworkEstimator(BaseEstimator):
    """The part that Classifier and Regressor share: parameters, network, training, outputs and pickling."""

    _default_loss: Callable[..., Any]

    def __init__(
        self,
        module=None,
        *,
        epochs=10,
        batch_size=64,
        optimizer="adam",
        lr=1e-3,
        loss=None,
        random_state=None,
        threads=None,
        verbose=False,
    ):
        self.module = module
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.loss = loss
        self.random_state = random_state
        self.threads = threads
        self.verbose = verbose

    @property
    def module_(self) -> Module:
        """The trained network."""
        return self.step_.model

    @property
    def loss_curve_(self) -> list[float]:
        """The mean loss of each epoch."""
        return [row["loss"] for row in self.step_.history]

    def _begin(self, input_shape: tuple[int, ...], n_outputs: int) -> None:
        """Make the network and its training step for data of a shape. Raises an error of the first wrong parameter."""
        random = check_random_state(self.random_state)
        draw, order, dropout = (int(random.randint(_MAX_SEED)) for _ in range(3))
        loss = type(self)._default_loss if self.loss is None else self.loss
        fitted_with = {"module": self.module, "loss": loss, "input_shape": input_shape, "n_outputs": n_outputs}
        network = _make_network(fitted_with, draw)
        _check_outputs(network, input_shape, n_outputs, self.batch_size)
        rule = _make_optimizer(self.optimizer, self.lr)
        step = TrainStep(network, loss, rule, seed=dropout, threads=self.threads)
        # Parameters may be set to others later; the trained network is that of these.
        self._fitted_with, self._order_seed = fitted_with | {"optimizer": self.optimizer, "lr": self.lr}, order
        self.input_shape_, self.n_outputs_, self.step_ = input_shape, n_outputs, step

    def _train(self, X: np.ndarray, target: np.ndarray, epochs: int) -> None:
        batches = Batches(X, target, self.batch_size, seed=self._order_seed)
        self.step_.fit(batches, epochs=self.step_.epoch + epochs, progress=None if self.verbose else False)

    def _check_training_data(self, X: Any, y: Any, reset: bool, **checks: Any) -> tuple[np.ndarray, np.ndarray]:
        check_parameters(epochs=self.epochs, batch_size=self.batch_size)
        X, y = validate_data(self, X, y, dtype=np.float32, allow_nd=True, reset=reset, **checks)
        if not reset:
            self._check_shape(X)
        return X, y

    def _check_shape(self, X: np.ndarray) -> None:
        if X.shape[1:] != self.input_shape_:
            raise ShapeError(
                f"{type(self).__name__} was fitted with samples of shape {self.input_shape_}; those of X have shape "
                f"{X.shape[1:]}"
            )

    def _compute_outputs(self, X: Any) -> np.ndarray:
        """Return the network's outputs in evaluation mode [samples, n_outputs].

        Every batch has `batch_size` rows: the last one is padded with copies of its last row. One program therefore
        serves any number of samples, and a prediction does not depend on the other rows.
        """
        check_is_fitted(self, "step_")
        check_parameters(epochs=self.epochs, batch_size=self.batch_size)
        X = validate_data(self, X, dtype=np.float32, allow_nd=True, reset=False)
        self._check_shape(X)
        whole = len(X) - len(X) % self.batch_size
        parts = [self.module_.predict(X[:whole], batch_size=self.batch_size)] if whole else []
        if rest := len(X) - whole:
            filled = np.concatenate([X[whole:], np.repeat(X[-1:], self.batch_size - rest, axis=0)])
            parts.append(self.module_.predict(filled, batch_size=self.batch_size)[:rest])
        return np.concatenate(parts)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: a training step as the files that `es.save` writes, by name."""
        state = dict(super().__getstate__())
        step = state.pop("step_", None)
        if step is not None:
            with tempfile.TemporaryDirectory() as folder:
                save(step, Path(folder) / "step")
                state["_files"] = {p.name: files.read_bytes(p) for p in (Path(folder) / "step").iterdir()}
            state["_own_optimizer"] = optim.describe(step.optimizer) is None
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        state = dict(state)
        saved, own_optimizer = state.pop("_files", None), state.pop("_own_optimizer", False)
        super().__setstate__(state)
        if saved is None:
            return
        fitted_with = self._fitted_with
        with tempfile.TemporaryDirectory() as folder:
            for name, content in saved.items():
                files.write(Path(folder) / name, content)
            self.step_ = load(
                folder,
                model=_make_network(fitted_with, 0),
                loss=fitted_with["loss"],
                optimizer=_make_optimizer(fitted_with["optimizer"], fitted_with["lr"]) if own_optimizer else None,
                threads=self.threads,
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


@_document_parameters(
    targets="logits [batch, n_outputs] and numbers of classes [batch]",
    loss="cross_entropy",
    attributes="\n        classes_: the class labels, sorted.",
)
class Classifier(ClassifierMixin, _NetworkEstimator):
    """A classifier whose network gives a logit for each class."""

    _default_loss = cross_entropy

    def fit(self, X: Any, y: Any) -> Classifier:
        """Train a new network.

        Args:
            X: samples [samples, ...], finite numbers.
            y: a label of each sample, numbers or strings.
        """
        X, y = self._check_training_data(X, y, reset=True)
        check_classification_targets(y)
        self.classes_, targets = np.unique(y, return_inverse=True)
        self._begin(X.shape[1:], len(self.classes_))
        self._train(X, targets.astype(np.int64), self.epochs)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Classifier:
        """Train for one epoch on further samples, as `fit` for the first ones.

        Args:
            X: samples, of the shape of earlier ones.
            y: a label of each sample.
            classes: all labels that will ever come; needed at the first call.

        Raises:
            ArgumentError: the first call lacks `classes`, a later one has others, or a label is none of them.
        """
        first = not hasattr(self, "step_")
        X, y = self._check_training_data(X, y, reset=first)
        check_classification_targets(y)
        if first and classes is None:
            raise ArgumentError("the first call of partial_fit needs classes=, all labels that will ever come")
        known = unique_labels(classes) if first else self.classes_
        if not first and classes is not None and not np.array_equal(known, unique_labels(classes)):
            raise ArgumentError(f"classes={show(classes)} differs from that of the first call of partial_fit")
        if unknown := sorted(set(np.unique(y).tolist()) - set(known.tolist())):
            raise ArgumentError(f"y has the label {unknown[0]!r}, which is none of the classes {known.tolist()}")
        if first:
            self._begin(X.shape[1:], len(known))
            self.classes_ = known
        self._train(X, np.searchsorted(known, y), 1)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest label of each sample."""
        outputs = self._compute_outputs(X)
        return self.classes_[outputs.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, in the order of `classes_` [samples, classes]."""
        return softmax(self._compute_outputs(X).astype(np.float64), copy=False)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of the probability of each class [samples, classes]."""
        outputs = self._compute_outputs(X).astype(np.float64)
        outputs -= outputs.max(axis=1, keepdims=True)
        return outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))


@_document_parameters(targets="both [batch, n_outputs]", loss="mse_loss", attributes="")
class Regressor(RegressorMixin, _NetworkEstimator):
    """A regressor whose network gives one number for each target."""

    _default_loss = mse_loss

    def fit(self, X: Any, y: Any) -> Regressor:
        """Train a new network.

        Args:
            X: samples [samples, ...], finite numbers.
            y: the target of each sample, a number or [samples, targets].
        """
        X, y = self._check_training_data(X, y, reset=True, multi_output=True, y_numeric=True)
        self._target_shape = y.shape[1:]
        targets = y.reshape(len(y), -1).astype(np.float32)
        self._begin(X.shape[1:], targets.shape[1])
        self._train(X, targets, self.epochs)
        return self

    def partial_fit(self, X: Any, y: Any) -> Regressor:
        """Train for one epoch on further samples, as `fit` for the first ones.

        Args:
            X: samples, of the shape of earlier ones.
            y: the target of each sample, of the shape of earlier ones.
        """
        first = not hasattr(self, "step_")
        X, y = self._check_training_data(X, y, reset=first, multi_output=True, y_numeric=True)
        targets = y.reshape(len(y), -1).astype(np.float32)
        if first:
            self._target_shape = y.shape[1:]
            self._begin(X.shape[1:], targets.shape[1])
        elif y.shape[1:] != self._target_shape:
            raise ShapeError(f"earlier targets have shape {self._target_shape} a sample; those of y {y.shape[1:]}")
        self._train(X, targets, 1)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the targets of each sample, in the shape of y at `fit`."""
        outputs = self._compute_outputs(X).astype(np.float64)
        return outputs.reshape(len(outputs), *self._target_shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@check_arguments
def check_parameters(*, epochs: Count, batch_size: Count) -> None:
    """Check the parameters that neither the training step nor the optimizer checks."""


def _make_network(fitted_with: Mapping[str, Any], seed: int) -> Module:
    """Return the network for the data of a fit, with weights drawn from a seed. Raises KindError, which says what
    `module` must be."""
    module, input_shape, n_outputs = fitted_with["module"], fitted_with["input_shape"], fitted_with["n_outputs"]
    if isinstance(module, Module) or not (module is None or callable(module)):
        hint = "lambda input_shape, n_outputs: ..." if isinstance(module, Module) else "None, or one"
        raise KindError(
            f"module={show(module)} must be a function (input_shape, n_outputs) that returns a new network: {hint}"
        )
    with init.seeded(seed):
        network = (module or _make_default_network)(input_shape, n_outputs)
    if not isinstance(network, Module):
        raise KindError(f"module{input_shape, n_outputs} returned {describe(network)}; it must return an es.nn.Module")
    return network


def _make_default_network(input_shape: tuple[int, ...], n_outputs: int) -> Module:
    """Return a multilayer perceptron as wide as the data ask for."""
    features = prod(input_shape)
    width = min(max(_MIN_WIDTH, 1 << (features + n_outputs - 1).bit_length()), _MAX_WIDTH)
    return Sequential(
        Flatten(), Linear(features, width), ReLU(), Linear(width, width // 2), ReLU(), Linear(width // 2, n_outputs)
    )


def _check_outputs(network: Module, input_shape: tuple[int, ...], n_outputs: int, rows: int) -> None:
    """Raise ShapeError unless a network returns [batch, n_outputs]. It is traced, not compiled."""
    with network.in_mode(training=False):
        outputs = trace_shapes(network, [((rows, *input_shape), f32)], ["X"]).graph.outputs
    if len(outputs) != 1:
        raise ShapeError(f"module{input_shape, n_outputs} gives {len(outputs)} outputs; it must give one tensor")
    if outputs[0].shape != (rows, n_outputs):
        raise ShapeError(
            f"module{input_shape, n_outputs} gives outputs of shape {outputs[0].shape} for {rows} samples; it must "
            f"give {rows, n_outputs}: its second argument, n_outputs, is the number of outputs of the last layer"
        )


def _make_optimizer(optimizer: Any, lr: Any) -> Any:
    """Return an optimizer by its name, or the result of a function of `lr`. Raises ArgumentError, KindError."""
    if isinstance(optimizer, str):
        if optimizer not in _OPTIMIZERS:
            raise ArgumentError(f"no optimizer is named {optimizer!r}; known: {', '.join(_OPTIMIZERS)}")
        return _OPTIMIZERS[optimizer](lr=lr)
    if isinstance(optimizer, (optim.Rule, optim.Groups)) or not callable(optimizer):
        raise KindError(
            f"optimizer={show(optimizer)} must be a name or a function of lr, as "
            "functools.partial(es.optim.SGD, momentum=0.9)"
        )
    return optimizer(lr=lr)
