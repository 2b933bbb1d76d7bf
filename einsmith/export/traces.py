"""Trace a training step or a function of tensors for export to a library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from einsmith.api.jit import Jitted
from einsmith.api.settings import DEFAULTS
from einsmith.api.tracing import arguments_of, names_of, trace_arguments, trace_call
from einsmith.base.dtypes import f16
from einsmith.base.errors import ArgumentError
from einsmith.base.numerics import PLAIN
from einsmith.base.trees import flatten
from einsmith.export import exported
from einsmith.export.exported import ExportedSetting, ExportSubject, Memories, Traced, Training
from einsmith.nn import Module
from einsmith.nn.module import export_name
from einsmith.runtime.memory import DimensionOrder
from einsmith.training import TrainStep
from einsmith.training.evaluate import losses_and_outputs
from einsmith.training.step_graph import StepGraph

STEPS, GATHERED, SAMPLES = "training/steps", "training/gathered", "training/gathered_samples"
UPDATES, VALUES = "training/updates", "training/values"
"""Names of the step's own tensors: its counters, and the values of its settings, NaN for one that follows a table."""
REPORTS = "training/reports"
"""Name of the tensor of values that the last step reported after its loss; it is in no file."""


# ------------------------------------------------------------------------------------------------------------ steps


def of_step(step: TrainStep, batch: tuple, threads: int, schedule: int | None) -> ExportSubject:
    """Trace a step's training, evaluation and prediction for the shapes of `batch`, or for all compiled shapes.

    schedule: number of steps for which settings that are callables are tabulated. Raises ArgumentError where no shapes
    are known, or where a callable needs `schedule`."""
    if step.runner.is_parallel:
        raise ArgumentError("a step of a group of processes is exported from its save: es.export(es.load(folder), ...)")
    if step.parts.definition.numerics.stored is f16:
        raise ArgumentError("a step of precision='fp16' scales its loss, which a library cannot; use 'bf16' or 'fp32'")
    batches = [step.read_batch(batch)] if batch else _batches_of_zeros(step)
    if not batches:
        raise ArgumentError(
            "the shapes of a batch are not known, as nothing is compiled yet: pass a batch, es.export(step, folder, x, "
            "y), or call step.compile(x, y) first, once for each shape that the library needs"
        )
    settings = tuple(_settings(step, schedule))
    inputs = len(batches[0]) - step.parts.definition.targets
    names, targets = _names(step.model, inputs), ["target"]
    if step.parts.definition.targets > 1:
        targets = [f"target{n}" for n in range(step.parts.definition.targets)]
    for p in step.model.parameters():
        p.release_order()
    traced = _trace(step, batches)
    memories = Memories()
    memories.add_model(step.model)
    for name, slot in step.current_state().items():
        memories.add_memory(name, exported.OPTIMIZER, slot.memory)
    _add_numbers(step, settings, memories)
    groups = {id(g): n for n, g in enumerate(step.parts.state.counts.groups)}
    graphs = [
        Traced(
            exported.GATHER if gather else exported.TRAIN,
            n,
            trained.graph,
            memories.bound(trained.bind, trained.live),
            (*names, *targets),
            step.parts.definition.numerics,
            finite=trained.graph.outputs[0],
            memory=step.memory_limit,
            groups=tuple(groups[id(g)] for g in trained.groups),
            samples=step.parts.definition.count_samples(batches[n]),
            max_stored=step.max_stored,
        )
        for n, gather, trained in traced
    ]
    numerics = step.parts.definition.numerics
    for n, arrays in enumerate(batches):
        example = tuple(arrays[:inputs])
        with step.model.in_mode(training=False):
            evaluated = losses_and_outputs(step.model, step.loss, step.trained)
            loss = trace_call(evaluated, (example, tuple(arrays[inputs:])), {}, numerics=numerics)
            output = trace_call(step.model, example, {}, numerics=numerics)
        for role, call, called, rounding in (
            (exported.EVALUATE, loss, (*names, *targets), numerics),
            (exported.PREDICT, output, names, replace(numerics, winograd=False)),
        ):
            bind = memories.bound(call.bind, call.live)
            graphs.append(Traced(role, n, call.graph, bind, called, rounding))
    reports = next(trained.reports for _, gather, trained in traced if not gather)
    if reports:
        memories.add(REPORTS, exported.NUMBER, np.zeros(len(reports)))
    training = Training(settings, reports, step.accumulate, len(groups))
    return ExportSubject(step.model._class_name(), threads, graphs, memories, training)


def _batches_of_zeros(step: TrainStep) -> list[list[np.ndarray]]:
    """Return batches of zeros in the shapes that a step is compiled for, in the order of compilation."""
    signatures = dict.fromkeys(shapes for shapes, *_ in step.compiler.programs)
    return [[np.zeros(shape, dtype) for shape, dtype in shapes] for shapes in signatures]


def _names(f: Callable, count: int) -> tuple[str, ...]:
    """Return the names of a function's first `count` positional arguments."""
    known = names_of(f)
    return tuple(known[n] if n < len(known) else f"x{n}" for n in range(count))


def _trace(step: TrainStep, batches: list[list[np.ndarray]]) -> list[tuple[int, bool, StepGraph]]:
    """Trace the training graphs of all batches; return (batch number, whether it only gathers, graph) for each.

    All graphs are traced again where one has split groups of parameters that earlier graphs read."""
    while True:
        traces = [
            (n, gather, step.compiler.trace(arrays, gather))
            for n, arrays in enumerate(batches)
            for gather in (False, True)[: 1 + (step.accumulate > 1)]
        ]
        if not any(graph.divided for *_, graph in traces):
            return traces


def _settings(step: TrainStep, schedule: int | None) -> Iterator[ExportedSetting]:
    """Yield the optimizer's hyperparameters and the step's own settings. Raises ArgumentError as `of_step`."""
    changing = {
        f"{group}/{n}" if group else n: rule
        for group, rule in step.optimizer.rules.items()
        for n, v in rule.hyper.items()
        if callable(v)
    }
    if changing and schedule is None:
        raise ArgumentError(
            f"{next(iter(changing))} is a callable of the step, which a library without Python cannot call; pass "
            "schedule=N, and its values at the first N steps are exported as a table"
        )
    tables = [step.optimizer.values(n + 1) for n in range(schedule or 0)] if changing else []
    for name, value in (step.optimizer.values(step.steps + 1) | step.updates.numbers).items():
        yield ExportedSetting(name, value, tuple(t[name] for t in tables) if name in changing else ())


def _add_numbers(step: TrainStep, settings: tuple[ExportedSetting, ...], memories: Memories) -> None:
    """Add the step's counters, the values of its settings, and all numbers that are computed from them."""
    groups, gathered = step.parts.state.counts.groups, step.parts.accumulation
    for name, count in ((STEPS, step.steps), (GATHERED, gathered.batches), (SAMPLES, gathered.samples)):
        memories.add(name, exported.TRAINING, np.array(count, np.int64))
    memories.add(UPDATES, exported.TRAINING, np.array([g.updates for g in groups], np.int64))
    values = [np.nan if s.table else s.value for s in settings]
    memories.add(VALUES, exported.TRAINING, np.array(values, np.float64))
    memories.add_number(step.parts.numbers.count, exported.COUNT)
    for n, g in enumerate(groups):
        memories.add_number(g.memory, exported.UPDATES, n)
    numbers = step.parts.numbers.hyperparameters | step.parts.numbers.derived
    meanings = {
        "draw": exported.DRAW,
        "weight": exported.WEIGHT_OF_BATCH,
        "begins": exported.BEGINS,
        "samples": exported.SAMPLES,
    }
    own = {id(step.parts.numbers.derived[n]): kind for n, kind in meanings.items() if n in step.parts.numbers.derived}
    known = {s.name: n for n, s in enumerate(settings)}
    for name, array in numbers.items():
        kind = own.get(id(array), exported.SETTING)
        memories.add_number(array, kind, known[name] if kind == exported.SETTING else 0)


# -------------------------------------------------------------------------------------------------------- functions


def of_function(f: Callable, example: tuple, threads: int) -> ExportSubject:
    """Trace a function of tensors for arguments of the shapes of `example`, which may be nested.

    Raises ArgumentError where arguments are needed but not given."""
    jitted = f if isinstance(f, Jitted) else None
    plain = f if jitted is None else jitted.f
    known = _names(plain, len(example))
    static = getattr(plain, "static_argnames", ()) if jitted is None else jitted.static
    arguments = arguments_of(example, {}, frozenset(n for n, name in enumerate(known) if name in static), known)
    if not example and _needs_arguments(plain):
        raise ArgumentError(
            "the shapes of the function's arguments are not known: pass examples, as es.export(f, folder, x)"
        )
    structure = flatten((list(example), {}))[1]
    traced = trace_arguments(plain, arguments, structure)
    if any(isinstance(memory.layout, DimensionOrder) for _, memory in traced.live):
        for stored, _ in traced.live:
            stored.release_order()
        traced = trace_arguments(plain, arguments, structure)
    memories = Memories()
    modules = [m for m in traced.depends if isinstance(m, Module)]
    parts = {id(part) for m in modules for part in m.modules() if part is not m}
    roots = [m for m in modules if id(m) not in parts]
    for n, root in enumerate(roots):
        memories.add_model(root, f"{n}." if len(roots) > 1 else "")
    leaves = [flatten(x)[0] for x in example]
    names = [f"{k}_{n}" if len(xs) > 1 else k for k, xs in zip(known, leaves, strict=True) for n in range(len(xs))]
    array_names = tuple(name for name, a in zip(names, arguments, strict=True) if not a.static)
    bind = memories.bound(traced.bind, traced.live)
    numerics = PLAIN if jitted is None else jitted.numerics
    settings = DEFAULTS if jitted is None else jitted.settings
    graph = Traced(exported.CALL, 0, traced.graph, bind, array_names, numerics, max_stored=int(settings.max_stored))
    return ExportSubject(export_name(plain), threads, [graph], memories)


def _needs_arguments(f: Callable) -> bool:
    """Return whether a function's signature requires arguments; true where it has no signature."""
    try:
        inspect.signature(f.forward if isinstance(f, Module) else f).bind()
    except (TypeError, ValueError):
        return True
    return False
