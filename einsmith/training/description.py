"""Describe a training step and its programs for people."""

from __future__ import annotations

from dataclasses import fields

from einsmith.base import html
from einsmith.base.caches import Cache
from einsmith.driver.executable import Executable
from einsmith.training.definition import StepDefinition
from einsmith.training.settings import Settings


def describe_programs(programs: Cache[tuple, Executable]) -> html.PlanText:
    """Describe the programs of `StepCompiler.programs`: each kernel's pattern, configuration and seconds."""
    parts = []
    for (shapes, threads, _, gather), run in programs.items():
        head = ", ".join(f"{d}{list(s)}" for s, d in shapes)
        what = "gradients" if gather else "training step"
        parts.append((f"{what} for {head} on {threads} threads", run.describe(), run.bars))
    return html.PlanText(parts, "nothing is compiled yet; call step.compile(x, y)")


def describe_explorations(programs: Cache[tuple, Executable]) -> str:
    """Return the logs of the programs' explorations, a line for each finding, and the state of what goes on."""
    explorations = [run.note.exploration for _, run in programs.items()]
    lines = [line for x in explorations if x is not None for line in (*x.log, x.status) if line]
    return html.Text("\n".join(lines))


def describe_definition(definition: StepDefinition) -> str:
    """Return model, loss, optimizer, and the settings that differ from the defaults, as arguments of TrainStep."""
    loss = getattr(definition.loss, "__name__", type(definition.loss).__name__)
    plain, settings = Settings(), definition.settings
    chosen = {f.name: getattr(settings, f.name) for f in fields(Settings)}
    extra = "".join(f", {n}={v!r}" for n, v in chosen.items() if v != getattr(plain, n))
    return f"{type(definition.model).__name__}, {loss}, {definition.optimizer!r}{extra}"
