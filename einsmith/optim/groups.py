"""Define parameter groups: other hyperparameters, or another rule, for some of a model's parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from einsmith.base.errors import ArgumentError, UnknownNameError
from einsmith.optim.rule import Rule

REST = "rest"
"""The group of the parameters that no other group names."""


class Group:
    """A group of parameters with a rule or arguments of its own.

    which: any number of names or patterns of parameters ("head.weight", "*.bias"), paths of modules ("encoder.0"),
    parameters, modules, functions of (name, parameter), and lists of these. ndim: number of dimensions, or several, to
    which the group is restricted; with an empty `which` it selects from all parameters. rule: the group's rule; without
    it, the group has the rest's rule with other arguments: `Group("*.bias", "*norm*", weight_decay=0.0)`.
    """

    def __init__(
        self, *which: Any, ndim: int | Collection[int] | None = None, rule: Rule | None = None, **changes: Any
    ):
        flat = tuple(_flat(which))
        if not flat and (which or ndim is None):
            raise ArgumentError("a group names no parameters; pass a pattern such as '*.bias', parameters, or ndim=")
        if rule is not None and not isinstance(rule, Rule):
            raise ArgumentError(f"rule={rule!r} is not an update rule; pass one, as es.optim.SGD(lr=0.1)")
        if rule is not None and changes:
            raise ArgumentError(f"a group has a rule of its own, or other arguments ({', '.join(changes)}), not both")
        if rule is None and not changes:
            raise ArgumentError("a group needs a rule, or arguments in which it differs: Group('*.bias', lr=0.1)")
        self.which = flat
        self.ranks = None if ndim is None else {ndim} if isinstance(ndim, int) else set(ndim)
        self.rule, self.changes = rule, changes

    def find(self, model: Any, label: str) -> list[str]:
        """Return the names of the group's parameters in a model. label: the group's name, for messages.

        Raises ArgumentError where an element of `which` names no parameter, or where the group is empty."""
        parameters = dict(model.named_parameters())
        named: dict[str, None] = {}
        for what in self.which:
            names = _names(what, model, parameters)
            if not names:
                near = get_close_matches(what, parameters, 1) if isinstance(what, str) else []
                hint = f"did you mean {near[0]!r}?" if near else f"its parameters are {_quote(parameters)}"
                raise ArgumentError(
                    f"the group {label!r} names {what!r}, which matches no parameter of the model; {hint}"
                )
            named |= dict.fromkeys(names)
        known = list(named if self.which else parameters)
        chosen = [n for n in known if self.ranks is None or parameters[n].ndim in self.ranks]
        if not chosen:
            raise ArgumentError(
                f"the group {label!r} is empty: no parameter of the model has {sorted(self.ranks or ())} dimensions"
                + (" among those that it names" if self.which else "")
            )
        return chosen


def _flat(which: Iterable[Any]) -> Iterable[Any]:
    for what in which:
        if isinstance(what, str) or hasattr(what, "named_parameters") or hasattr(what, "requires_grad"):
            yield what
        elif isinstance(what, Iterable):
            yield from _flat(what)
        elif callable(what):
            yield what
        else:
            raise ArgumentError(
                f"a group cannot be selected by {what!r}; pass names, patterns, parameters or functions"
            )


def _names(what: Any, model: Any, parameters: Mapping[str, Any]) -> list[str]:
    if isinstance(what, str):
        if what in parameters:
            return [what]
        below = [n for n in parameters if n.startswith(f"{what}.")]
        return below or [n for n in parameters if fnmatchcase(n, what)]
    if hasattr(what, "named_parameters"):
        own = {id(p) for p in what.parameters()}
        return [n for n, p in parameters.items() if id(p) in own]
    if hasattr(what, "requires_grad"):
        return [n for n, p in parameters.items() if p is what]
    return [n for n, p in parameters.items() if what(n, p)]


def _quote(names: Iterable[str], most: int = 8) -> str:
    known = list(names)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


class Groups:
    """An optimizer of several rules: `rest` for the parameters that no group names.

        es.optim.Groups(
            es.optim.AdamW(lr=1e-3, weight_decay=0.05),
            plain=es.optim.Group("*.bias", "*norm*", weight_decay=0.0),
            head=es.optim.Group("fc", rule=es.optim.SGD(lr=0.1)),
        )

    A group's rule is `optimizer["plain"]`, the rest's `optimizer["rest"]`; their hyperparameters are set there. rest
    may be None where the groups name every parameter. Raises ArgumentError, when a TrainStep is made, for groups that
    name nothing, for parameters in two groups, and for those in none.
    """

    def __init__(self, rest: Rule | None, /, **groups: Group):
        if rest is not None and not isinstance(rest, Rule):
            raise ArgumentError(f"rest={rest!r} is not an update rule; pass one, as es.optim.SGD(lr=0.1), or None")
        if not groups:
            raise ArgumentError("no group is given; for one rule, pass the rule itself as the optimizer")
        self.groups: dict[str, Group] = {}
        self.rules: dict[str, Rule] = {}
        for name, group in groups.items():
            if not isinstance(group, Group):
                raise ArgumentError(f"the group {name!r} is {group!r}; pass es.optim.Group(which, ...)")
            if name == REST:
                raise ArgumentError(
                    f"a group cannot be called {REST!r}: this is the name of the rule for all other parameters"
                )
            if group.rule is None and rest is None:
                raise ArgumentError(f"the group {name!r} changes the rest's rule, but there is none; give it a rule")
            self.groups[name] = group
            self.rules[name] = group.rule or rest.altered(group.changes)  # type: ignore[union-attr]
        if rest is not None:
            self.rules[REST] = rest
        if len({id(r) for r in self.rules.values()}) != len(self.rules):
            raise ArgumentError("two groups share one rule; give each its own, so that each can be set alone")
        self._names: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> Rule:
        if name not in self.rules:
            near = get_close_matches(name, self.rules, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.rules)}"
            raise UnknownNameError(f"no group is named {name!r}; {hint}")
        return self.rules[name]

    def assign(self, model: Any) -> dict[str, tuple[str, Rule]]:
        """Return {name: (name of the group, rule)} of every parameter of a model. Raises ArgumentError (see class)."""
        where: dict[str, str] = {}
        for label, group in self.groups.items():
            for name in group.find(model, label):
                if name in where:
                    raise ArgumentError(f"the parameter {name} is in two groups, {where[name]!r} and {label!r}")
                where[name] = label
        names = [n for n, _ in model.named_parameters()]
        left = [n for n in names if n not in where]
        if left and REST not in self.rules:
            raise ArgumentError(f"no group contains {_quote(left)}; add them to a group, or pass a rule for the rest")
        self._names = {label: [n for n in names if where.get(n) == label] for label in self.groups}
        return {n: (where.get(n, REST), self.rules[where.get(n, REST)]) for n in names}

    def values(self, step: int) -> dict[str, float]:
        """Return the hyperparameters at a step (the first is 1), by "group/name", callables evaluated."""
        return {f"{label}/{n}": v for label, rule in self.rules.items() for n, v in rule.values(step).items()}

    def __copy__(self) -> Groups:
        """Return groups with rules of their own, so that hyperparameters are set apart."""
        new = object.__new__(type(self))
        own = {id(rule): copy.copy(rule) for rule in self.rules.values()}
        groups = {label: copy.copy(group) for label, group in self.groups.items()}
        for group in groups.values():
            group.rule = own.get(id(group.rule))
        rules = {label: own[id(rule)] for label, rule in self.rules.items()}
        new.__dict__.update(self.__dict__, groups=groups, rules=rules, _names=dict(self._names))
        return new

    def __setattr__(self, name: str, value: Any) -> None:
        if "rules" in self.__dict__ and any(name in rule.hyper for rule in self.rules.values()):
            raise AttributeError(f"{name} belongs to each group; set optimizer['{next(iter(self.rules))}'].{name}, ...")
        object.__setattr__(self, name, value)

    def describe(self, of: Callable[[Rule], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Return a JSON description from which `restore` makes equal groups; None where a rule cannot be described.

        of: describes a rule. Parameters are named one by one, as they were found in the model."""
        rules = {label: of(rule) for label, rule in self.rules.items()}
        if any(r is None for r in rules.values()):
            return None
        return {"name": "Groups", "rules": rules, "parameters": self._names}

    @classmethod
    def restore(cls, description: Mapping[str, Any], of: Callable[[Mapping[str, Any]], Rule]) -> Groups:
        """Return the groups that `describe` described. of: restores a rule from its description."""
        rules = {label: of(d) for label, d in description["rules"].items()}
        groups = {label: Group(names, rule=rules[label]) for label, names in description["parameters"].items()}
        return cls(rules.get(REST), **groups)

    def __repr__(self) -> str:
        return f"Groups({', '.join(f'{label}={rule!r}' for label, rule in self.rules.items())})"
