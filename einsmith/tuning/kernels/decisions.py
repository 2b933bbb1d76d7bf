"""Choose what a kernel is compiled to, by the cost model or by a decision text, and lower and explain the choice.

A decision is a configuration as text: `contraction mr=6 nv=4` is a pattern's name and some of its genes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

from einsmith.base.errors import CompileError
from einsmith.cost.facts import Target
from einsmith.kernels import autoconfig
from einsmith.kernels.genes import FORM, Space, genes, members
from einsmith.kernels.pattern import Lowered, Pattern, cost_of, describe
from einsmith.kernels.pattern_keys import is_builtin
from einsmith.schedule.kernel import Kernel

SINGLE_GENE = "config"
"""Name of the only gene of a configuration without parts, whose value is the whole configuration."""


def name_of(kernel: Kernel) -> str:
    """Return the kernel's digest in hexadecimal digits."""
    return kernel.digest.hex()


def choice_of(kernel: Kernel, target: Target, text: str) -> autoconfig.Choice:
    """Return the choice that a decision text states for a kernel, or the cost model's choice where the text is
    empty."""
    return parse_choice(kernel, target, text) if text else autoconfig.choose(kernel, target)


def parse_choice(kernel: Kernel, target: Target, text: str) -> autoconfig.Choice:
    """Parse a decision text into a kernel's choice of pattern and configuration.

    Genes that the text leaves out take the values of the cost model's choice. A gene of several parts (`pieces.0.mr`)
    may be called by its last name. Raises CompileError for a pattern that does not take the kernel, an unknown gene or
    value, and a configuration that is not legal.
    """
    where = f"the kernel {name_of(kernel)[:8]} ({describe(kernel)})"
    pattern, words = _pattern(kernel, target, text, where)
    space = pattern.space(kernel, target) or {SINGLE_GENE: tuple(pattern.configs(kernel, target))}
    values: dict[str, Any] = {}
    for word in words:
        gene, _, value = word.partition("=")
        names = [gene] if gene in space else [g for g in space if g.endswith(f".{gene}")]
        matches = {g: [v for v in space[g] if _text(v) == value] for g in names}
        if not any(matches.values()):
            raise CompileError(
                f"{word!r} is no gene of {pattern.name} on {where}; the genes and their values: {show_space(space)}"
            )
        values |= {g: vs[0] for g, vs in matches.items() if vs}
    config = _nearest(pattern, kernel, target, values)
    reason = "no configuration has these genes" if config is None else pattern.legal(kernel, config, target)
    if reason:
        raise CompileError(
            f"{text!r} is not possible for {where}: {reason}; the genes of {pattern.name}: {show_space(space)}"
        )
    return autoconfig.Choice(pattern, config, cost_of(pattern, kernel, config, target), kernel, target, 0.0)


def format_choice(pattern: Pattern, config: Any) -> str:
    """Return the decision text of a configuration, with all of its genes; `parse_choice` parses it back to the equal
    configuration."""
    return " ".join([pattern.name, *(f"{gene}={_text(value)}" for gene, value in _genes(config).items())])


def _genes(config: Any) -> dict[str, Any]:
    """Return a configuration's genes; a configuration without parts is its own single gene."""
    return {SINGLE_GENE: config} if members(config) is None else genes(config)


def _pattern(kernel: Kernel, target: Target, text: str, where: str) -> tuple[Pattern, list[str]]:
    """Return the pattern that a decision text begins with, and the words that follow."""
    able = [p for p in autoconfig.eligible_patterns(kernel, target) if p.match(kernel)]
    if autoconfig.price_scalar(kernel, target) is not None:
        able.append(autoconfig.SCALAR)
    for p in sorted(able, key=lambda p: -len(p.name)):
        if text == p.name or text.startswith(p.name + " "):
            return p, text[len(p.name) :].split()
    names = ", ".join(p.name for p in able)
    raise CompileError(f"{text!r} must begin with a pattern that takes {where}: {names}")


def _text(value: Any) -> str:
    return "".join(str(value).split())


def _nearest(pattern: Pattern, kernel: Kernel, target: Target, values: Mapping[str, Any]) -> Any | None:
    """Return the first configuration of the pattern that has the wanted forms, changed to these values of its genes.

    A configuration without further genes takes precedence, so that a text with all of its genes denotes exactly it.
    None if no configuration has these genes.
    """
    forms = {g: v for g, v in values.items() if g.rpartition(".")[2] == FORM}
    other_values = {g: v for g, v in values.items() if g not in forms}
    nearest = None
    for config in pattern.configs(kernel, target):
        config_genes = _genes(config)
        if all(config_genes.get(g) == v for g, v in forms.items()) and set(other_values) <= set(config_genes):
            if len(config_genes) == len(values):
                return change_genes(config, other_values)
            nearest = nearest or change_genes(config, other_values)
    return nearest


def change_genes(config: Any, values: Mapping[str, Any]) -> Any:
    """Return the configuration with other values of some genes. Raises KeyError for a gene that it does not have."""
    if members(config) is None and values.keys() <= {SINGLE_GENE}:
        return values.get(SINGLE_GENE, config)
    inner: dict[str, dict[str, Any]] = {}
    changed: dict[str, Any] = {}
    parts = members(config) or {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if first not in parts or bool(rest) is (members(parts[first]) is None) or rest == FORM:
            raise KeyError(name)
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            changed[name] = value
    changed |= {name: change_genes(parts[name], more) for name, more in inner.items()}
    if hasattr(config, "_fields"):
        return config._replace(**changed)
    if is_dataclass(config) and not isinstance(config, type):
        return replace(config, **changed)
    return tuple(changed.get(str(n), x) for n, x in enumerate(config))


def show_space(space: Space) -> str:
    """Return the genes as one line of text: each with its values, a run of whole numbers as from..to."""
    return "; ".join(f"{name}={_show(values)}" for name, values in space.items())


def _show(values: tuple[Any, ...]) -> str:
    numbers = all(type(v) is int for v in values)
    if numbers and len(values) > 2 and values == tuple(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return "|".join(map(str, values))


def lower_choice(chosen: autoconfig.Choice) -> Lowered:
    """Return the launches of a choice. Raises CompileError where the pattern's result cannot be run."""
    pattern, kernel = chosen.pattern, chosen.kernel
    if not is_builtin(pattern):
        reason = pattern.legal(kernel, chosen.config, chosen.target)
        if reason:
            raise CompileError(f"pattern {pattern.name!r} chooses {chosen.config} on {describe(kernel)}: {reason}")
    lowered = pattern.lower(kernel, chosen.config, chosen.target)
    if not isinstance(lowered, Lowered):
        raise unfit(chosen, f"{lowered!r}; a Lowered is needed")
    for x in lowered.launches:
        if x.tasks < 0:
            raise unfit(chosen, f"{x.tasks} tasks of a launch")
    if lowered.workspace < 0:
        raise unfit(chosen, f"a workspace of {lowered.workspace} bytes")
    return lowered


def unfit(chosen: autoconfig.Choice, what: str) -> CompileError:
    """Return the error for a pattern whose result cannot be run."""
    where = f"{chosen.config} on {describe(chosen.kernel)}"
    return CompileError(f"pattern {chosen.pattern.name!r} lowers {where} to {what}")


def explain(kernel: Kernel, target: Target, count: int = 5) -> str:
    """Describe the choice in numbers: predicted microseconds of the cheapest `count` configurations."""
    chosen = autoconfig.choose(kernel, target)
    lines = [describe(kernel)]
    for i, (name, config, cost) in enumerate(chosen.alternatives[:count]):
        lines.append(
            f"  {'*' if i == 0 else ' '} {cost.seconds * 1e6:10.2f} us  {name} {config}  (arithmetic "
            f"{cost.arithmetic * 1e6:.2f}, memory {cost.memory * 1e6:.2f}, special {cost.special * 1e6:.2f}, "
            f"launch {cost.launch * 1e6:.2f})"
        )
    return "\n".join(lines)
