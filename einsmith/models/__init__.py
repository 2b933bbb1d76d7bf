"""Networks ready to train, by name: `einsmith.models.get("lenet5")` is `einsmith.models.lenet5()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from einsmith.errors import ArgumentError, UnknownNameError
from einsmith.models.classic import MLP3, LeNet5
from einsmith.models.recurrent import (
    LLTMClassifier,
    LSTMLanguageModel,
    MILSTMClassifier,
    SCRNClassifier,
    SubLSTMClassifier,
)
from einsmith.nn import Module

_MODELS: dict[str, Callable[..., Module]] = {
    "lenet5": LeNet5,
    "lltm": LLTMClassifier,
    "lstm-lm": LSTMLanguageModel,
    "milstm": MILSTMClassifier,
    "mlp3": MLP3,
    "scrn": SCRNClassifier,
    "sublstm": SubLSTMClassifier,
}


def names() -> Iterator[str]:
    """The names that `get` knows, in alphabetical order."""
    return iter(sorted(_MODELS))


def register(name: str, make: Callable[..., Module]) -> None:
    """Adds a network under `name`; `make(**arguments)` builds it with fresh weights."""
    if name in _MODELS:
        raise ArgumentError(f"there is a model named {name!r} already")
    _MODELS[name] = make


def maker(name: str) -> Callable[..., Module]:
    """What makes the networks of that name. Raises UnknownNameError."""
    if name not in _MODELS:
        near = get_close_matches(name, _MODELS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UnknownNameError(f"no model is named {name!r}; {hint}known: {', '.join(names())}")
    return _MODELS[name]


def get(name: str, **arguments: Any) -> Module:
    """A new network of the kind `name`, its `spec` telling how to make another. Raises UnknownNameError."""
    model = maker(name)(**arguments)
    model.spec = {"name": name, "arguments": arguments}
    return model


def lenet5(**arguments: Any) -> LeNet5:
    """A new LeNet5; see the class for its arguments."""
    return get("lenet5", **arguments)  # type: ignore[return-value]


def mlp3(**arguments: Any) -> MLP3:
    """A new MLP3; see the class for its arguments."""
    return get("mlp3", **arguments)  # type: ignore[return-value]


def lltm(**arguments: Any) -> LLTMClassifier:
    """A new LLTMClassifier; see the class for its arguments."""
    return get("lltm", **arguments)  # type: ignore[return-value]


def lstm_lm(**arguments: Any) -> LSTMLanguageModel:
    """A new LSTMLanguageModel; see the class for its arguments."""
    return get("lstm-lm", **arguments)  # type: ignore[return-value]


def milstm(**arguments: Any) -> MILSTMClassifier:
    """A new MILSTMClassifier; see the class for its arguments."""
    return get("milstm", **arguments)  # type: ignore[return-value]


def scrn(**arguments: Any) -> SCRNClassifier:
    """A new SCRNClassifier; see the class for its arguments."""
    return get("scrn", **arguments)  # type: ignore[return-value]


def sublstm(**arguments: Any) -> SubLSTMClassifier:
    """A new SubLSTMClassifier; see the class for its arguments."""
    return get("sublstm", **arguments)  # type: ignore[return-value]


__all__ = [
    "LLTMClassifier", "LSTMLanguageModel", "LeNet5", "MILSTMClassifier", "MLP3", "SCRNClassifier", "SubLSTMClassifier",
    "get", "lenet5", "lltm", "lstm_lm", "maker", "milstm", "mlp3", "names", "register", "scrn", "sublstm",
]  # fmt: skip
