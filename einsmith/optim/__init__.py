"""Provide optimizers: update rules as formulas that are compiled into the training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from einsmith.base.arguments import show
from einsmith.base.errors import ArgumentError, EinsmithError
from einsmith.optim import lr_scheduler
from einsmith.optim.adaptive import Adadelta, Adamax, Lion, NAdam, RAdam
from einsmith.optim.classic import SGD, Adagrad, Adam, AdamW, RMSprop
from einsmith.optim.groups import REST, Group, Groups
from einsmith.optim.rule import Rule
from einsmith.optim.tensorwise import LAMB, Adafactor, Muon

STANDARD: dict[str, Callable[..., Rule]] = {
    c.__name__: c
    for c in (SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, NAdam, RAdam, Adamax, Lion, LAMB, Adafactor, Muon)
}


def describe(rule: Any) -> dict[str, Any] | None:
    """Return a JSON description from which `restore` makes an equal optimizer.

    Return None for unknown classes, and for callables that are not schedules of `lr_scheduler`."""
    if isinstance(rule, Groups):
        return rule.describe(describe)
    return rule.describe() if type(rule) is Rule or type(rule) is STANDARD.get(type(rule).__name__) else None


def restore(description: Mapping[str, Any]) -> Any:
    """Return the optimizer that `describe` described. Raises ArgumentError for any other description."""
    try:
        if description["name"] == "Groups":
            return Groups.restore(description, _restore_rule)
        return _restore_rule(description)
    except EinsmithError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise ArgumentError(f"{show(description)} does not describe an optimizer: {type(e).__name__}: {e}") from e


def _restore_rule(description: Mapping[str, Any]) -> Rule:
    name, arguments = description["name"], dict(description["arguments"])
    if name == "Rule":
        numbers = {n: _restore_number(v) for n, v in arguments.items()}
        return Rule(description["text"], description["init"], **numbers)
    rule = STANDARD[name](**arguments)
    for number, value in description["hyper"].items():
        setattr(rule, number, _restore_number(value))
    return rule


def _restore_number(value: Any) -> Any:
    return lr_scheduler.restore(value) if isinstance(value, Mapping) else value


__all__ = [
    "LAMB",
    "REST",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Group",
    "Groups",
    "Lion",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rule",
    "describe",
    "lr_scheduler",
    "restore",
]
