"""Optimizers: update rules as formulas, compiled into the training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from einsmith.optim.adaptive import Adadelta, Adamax, Lion, NAdam, RAdam
from einsmith.optim.classic import SGD, Adagrad, Adam, AdamW, RMSprop
from einsmith.optim.rule import Rule
from einsmith.optim.tensorwise import LAMB, Adafactor, Muon

STANDARD: dict[str, Callable[..., Rule]] = {
    c.__name__: c
    for c in (SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, NAdam, RAdam, Adamax, Lion, LAMB, Adafactor, Muon)
}


def describe(rule: Rule) -> dict[str, Any] | None:
    """What `restore` makes an equal rule of, as JSON; None for callable hyperparameters and unknown classes."""
    return rule.describe() if type(rule) is Rule or type(rule) is STANDARD.get(type(rule).__name__) else None


def restore(description: Mapping[str, Any]) -> Rule:
    """The rule that `describe` described. Raises KeyError for an unknown name."""
    name, arguments = description["name"], dict(description["arguments"])
    if name == "Rule":
        return Rule(description["text"], description["init"], **arguments)
    rule = STANDARD[name](**arguments)
    for number, value in description["hyper"].items():
        setattr(rule, number, value)
    return rule


__all__ = [
    "LAMB", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rule", "describe", "restore",
]  # fmt: skip
