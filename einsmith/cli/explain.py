"""`einsmith explain`: what a program's kernels are, why they are as they are, and how long they take."""

from __future__ import annotations

import inspect
import json
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from einsmith import models, modes, optim
from einsmith.cli.tasks import assignment, defaults, model_arguments, number, task_of
from einsmith.compile import Executable, label
from einsmith.errors import EinsmithError
from einsmith.expr.nodes import ROLES
from einsmith.kernels import choose as autoconfig
from einsmith.kernels import override
from einsmith.kernels.pattern import Cost
from einsmith.lang.op import op
from einsmith.runtime.threads import get_threads
from einsmith.training import TrainStep
from einsmith.tree import flatten


def explain(
    what: str,
    *,
    batch: int | None,
    shapes: Sequence[str],
    settings: Sequence[str],
    candidates: int,
    measure: bool,
    threads: int | None,
    memory_limit: int | None,
    overrides: Sequence[str],
    as_json: bool,
) -> None:
    """Compiles a model's training step, a Python file's `step` or a formula, and prints its kernels. overrides: each a
    kernel's digest, a pattern and genes (`kernels.override`)."""
    decisions = [x.partition(" ") for x in overrides]
    if len({name for name, _, _ in decisions}) < len(decisions):
        raise click.UsageError("--override is given twice for one kernel")
    with override.overriding({name: text.strip() for name, _, text in decisions}):
        run, inputs = _program(what, batch, shapes, settings, threads, memory_limit)
        report = gather(run, inputs, candidates, measure)
    if as_json:
        click.echo(json.dumps({"what": what} | report))
    else:
        click.echo(text_of(report))


# ------------------------------------------------------------------------------------------- what is to be explained


def _program(
    what: str, batch: int | None, shapes: Sequence[str], settings: Sequence[str], threads: int | None,
    memory_limit: int | None,
) -> tuple[Executable, list[np.ndarray]]:
    path = Path(what)
    formula = path.is_file() and path.suffix != ".py"
    if not formula and shapes:
        raise click.UsageError("--shape is for a file with a formula")
    if path.suffix == ".py" and path.is_file() and settings:
        raise click.UsageError("--set is for a file with a formula, or for a model")
    if path.is_file() and memory_limit is not None:
        raise click.UsageError("--memory-limit is for a model; a TrainStep in a file has its own memory_limit=")
    if path.is_file():
        return _formula(path, shapes, settings, threads) if formula else _file(path, threads)
    if what not in models.names():
        known = ", ".join(models.names())
        raise click.UsageError(f"{what!r} is no file and no model; the models are {known}")
    task = task_of(what)
    arguments = model_arguments(what, settings)
    example = task.example(batch or task.batch, defaults(what) | arguments)
    model = models.get(what, **(arguments | task.sizes(batch or task.batch)))
    step = TrainStep(model, task.loss, optim.SGD(lr=0.01, momentum=0.9), threads=threads, memory_limit=memory_limit)
    return _of_step(step, example)


def _of_step(step: TrainStep, inputs: tuple) -> tuple[Executable, list[np.ndarray]]:
    arrays = step._arrays(inputs)
    run = step._program(arrays)
    step._set_scalars()  # so that --measure computes with the learning rate that a step would have
    return run, arrays


def _of_function(f: Callable, inputs: tuple, threads: int | None) -> tuple[Executable, list[np.ndarray]]:
    static = frozenset(getattr(f, "static", ()))
    if static:
        names = list(inspect.signature(f).parameters)
        static |= frozenset(names.index(n) for n in static if n in names)
    traced = modes.trace_call(f, inputs, {}, static)
    run = Executable(traced.graph, traced.bind, threads or get_threads())
    leaves = flatten([x for n, x in enumerate(inputs) if n not in static])[0]
    arrays = [x for x in leaves if not isinstance(x, (str, bool, type(None)))]
    return run, [np.asarray(x) if isinstance(x, (int, float)) else modes.to_array(x) for x in arrays]


def _file(path: Path, threads: int | None) -> tuple[Executable, list[np.ndarray]]:
    """`step` of a Python file, with the file's `inputs`: a tuple of arguments, or a function that makes it."""
    try:
        found = runpy.run_path(str(path))
    except EinsmithError:
        raise
    except Exception as e:
        raise click.ClickException(f"{path} ends with {type(e).__name__}: {e}") from e
    for name in ("step", "inputs"):
        if name not in found:
            raise click.ClickException(
                f"{path} defines no `{name}`; it needs `step`, a TrainStep or a function, and `inputs`, a tuple of its "
                "arguments or a function that makes it"
            )
    step, inputs = found["step"], found["inputs"]
    inputs = inputs() if callable(inputs) else inputs
    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if isinstance(step, TrainStep):
        if threads is not None:
            step.threads = threads
        return _of_step(step, inputs)
    if not callable(step):
        raise click.ClickException(f"`step` of {path} is a {type(step).__name__}, neither a TrainStep nor a function")
    return _of_function(step, inputs, threads)


def _formula(
    path: Path, shapes: Sequence[str], settings: Sequence[str], threads: int | None
) -> tuple[Executable, list[np.ndarray]]:
    operator = op(path.read_text())
    given = dict(assignment(s, "--shape", "A=64,128") for s in shapes)
    parameters = {k: number(v) for k, v in (assignment(s, "--set", "stride=2") for s in settings)}
    rng = np.random.default_rng(0)
    inputs: list[np.ndarray] = []
    for name in operator.inputs:
        if name not in given:
            raise click.UsageError(f"the shape of {name} is missing: --shape {name}=...   ({operator.signature})")
        try:
            shape = tuple(int(n) for n in given.pop(name).split(",") if n)
        except ValueError:
            raise click.UsageError(f"--shape {name}=... takes whole numbers, as in {name}=64,128") from None
        if name in operator.program.integer_inputs:
            inputs.append(np.zeros(shape, np.int64))
        else:
            inputs.append(rng.standard_normal(shape, np.float32))
    if given:
        raise click.UsageError(f"the formula has no input {next(iter(given))}; it has {', '.join(operator.inputs)}")
    return _of_function(lambda *arrays: operator(*arrays, **parameters), tuple(inputs), threads)


# ------------------------------------------------------------------------------------------------------ the report


def gather(run: Executable, inputs: Sequence[np.ndarray], candidates: int, measure: bool) -> dict[str, Any]:
    """Everything that is printed, ready for JSON; times are in seconds.

    measure: also the median time of each kernel inside whole runs, in all turns of its loop together (`turns`, of each
    of which a prediction tells), and of each candidate shown, alone with warm caches.
    """
    times = run.time_calls(inputs) if measure else [None] * len(run.kernels)
    kernels = []
    rows = zip(run.roles, run.calls, run.kernels, run.turns, times, strict=True)
    for role, call, compiled, turns, seconds in rows:
        choice = override.choice_of(call.kernel, run.target)
        taken = (choice.pattern.name, choice.config)
        shown = _shown(choice.alternatives, candidates, taken)
        alone: Sequence[float | None] = [None] * len(shown)
        if measure and candidates > 0:
            pairs = [(autoconfig.pattern_of(n), c) for n, c, _ in shown]
            alone = run.backend.seconds_of(call.kernel, pairs, run.target, run.threads)
        kernels.append(
            {
                "kernel": override.name_of(call.kernel)[:8],
                "role": role,
                "root": label(call),
                "fused": [_stage(s.template.shape, s) for s in call.kernel.stages],
                "buffers": [f"{b.dtype.name}{list(b.shape)}" for b in call.kernel.buffers],
                "pattern": compiled.pattern,
                "config": compiled.config,
                "tasks": [tasks for _, tasks, _ in compiled.launches],
                "predicted": terms(choice.cost),
                "turns": turns,
                "measured": seconds,
                "considered": len(choice.alternatives),
                "candidates": [
                    {"pattern": n, "config": str(c), "predicted": terms(k), "alone": t, "taken": (n, c) == taken,
                     "ruled_out": n in choice.ruled_out}
                    for (n, c, k), t in zip(shown, alone, strict=True)
                ],
            }
        )
    return {
        "threads": run.threads,
        "arena_bytes": run.arena_bytes,
        "compile_seconds": run.compile_seconds,
        "kernels": kernels,
    }


def _shown(
    alternatives: Sequence[tuple[str, Any, Cost]], count: int, taken: tuple[str, Any]
) -> list[tuple[str, Any, Cost]]:
    """The `count` cheapest, the one that is taken, and the cheapest of every other pattern that takes the kernel."""
    out = list(alternatives[: max(1, count)])
    out += [x for x in alternatives if x[:2] == taken and x not in out]
    for found in alternatives if count > 0 else ():
        if found[0] not in {name for name, _, _ in out}:
            out.append(found)
    return out


def _stage(shape: Sequence[int], stage: Any) -> str:
    """One stage of a kernel in a word and a shape."""
    part = stage.template.parts[0]
    kind = getattr(getattr(part, "body", None), "combiner", None) or "pointwise"
    return f"{'scatter' if stage.template.is_scatter else kind} {'x'.join(map(str, shape)) or 'scalar'}"


def terms(cost: Cost) -> dict[str, float]:
    """A prediction and what it is made of: the larger of arithmetic and memory, plus special functions and launches."""
    return {
        "seconds": cost.seconds,
        "arithmetic": cost.arithmetic,
        "memory": cost.memory,
        "special": cost.special,
        "launch": cost.launch,
    }


def text_of(report: dict[str, Any]) -> str:
    """The report for people: microseconds, one block a kernel, and the sums of forward, backward and update."""
    kernels = report["kernels"]
    roles = [r for r in ROLES if any(k["role"] == r for k in kernels)]
    lines = [
        f"{len(kernels)} kernels, {report['threads']} threads, arena {report['arena_bytes'] / 2**20:.2f} MiB, compiled "
        f"in {report['compile_seconds']:.2f} s"
    ]
    for n, k in enumerate(kernels):
        measured = "" if k["measured"] is None else f", measured {_us(k['measured'])}"
        times = f" {k['turns']} times" if k["turns"] > 1 else ""
        role = f"{k['role']}  " if len(roles) > 1 else ""
        lines += ["", f"{n:3d}  {k['kernel']}  {role}{k['root']}"]
        lines.append(f"     predicted {_us(k['predicted']['seconds'])}{times}{measured}")
        if len(k["fused"]) > 1:
            lines.append(f"     fused: {' -> '.join(k['fused'])}")
        for c in k["candidates"]:
            p = c["predicted"]
            parts = ", ".join(f"{x} {p[x] * 1e6:.1f}" for x in ("arithmetic", "memory", "special", "launch") if p[x])
            alone = "" if c["alone"] is None else f"  alone {_us(c['alone'])}"
            mark = "*" if c["taken"] else " "
            lines.append(f"     {mark} {_us(p['seconds']):>11}{alone}  {c['pattern']} {c['config']}")
            if c["ruled_out"]:
                parts += f"; not asked: {k['pattern']} is known to serve this better"
            lines.append(f"         {parts}")
        more = k["considered"] - len(k["candidates"])
        if more > 0:
            lines.append(f"       and {more} more")
    lines.append("")
    for r in roles if len(roles) > 1 else ():
        lines.append(_sum(r, [k for k in kernels if k["role"] == r]))
    return "\n".join([*lines, _sum("in all", kernels)])


def _sum(name: str, kernels: Sequence[dict[str, Any]]) -> str:
    """The times of some kernels together, in all turns of their loops."""
    total = f"{name}: predicted {_us(sum(k['predicted']['seconds'] * k['turns'] for k in kernels))}"
    if all(k["measured"] is not None for k in kernels):
        total += f", measured {_us(sum(k['measured'] for k in kernels))}"
    return total


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"
