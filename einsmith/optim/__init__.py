"""Optimizers: update rules as formulas, compiled into the training step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einsmith.optim.rule import Rule
from einsmith.optim.standard import SGD, STANDARD, Adagrad, Adam, AdamW, RMSprop


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


__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "Rule", "describe", "restore"]
