"""Limits of memory as a scale: what is met at one is met at every larger one, and the least is met when it is typed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import MemoryLimitError
from einsmith.base.sizes import size_of
from einsmith.driver import compile
from einsmith.driver.executable import Executable
from einsmith.kernels import autoconfig
from einsmith.schedule import rematerialize
from einsmith.schedule.compiled_kernel import CompiledKernel
from einsmith.schedule.kernel import Kernel
from einsmith.schedule.pipeline import MemoryLimit, PlanContext, fit_memory
from einsmith.schedule.plan import Plan
from einsmith.schedule.row_clusters import MAX_STORED_BYTES

F = es.functional
WIDTHS = (1, 7, 15, 16, 17, 31, 32, 48, 65)
ACTIVATIONS = (F.relu, F.gelu, F.tanh, F.silu, F.sigmoid, lambda x: x * x, lambda x: F.exp(F.tanh(x)))
Batch = tuple[np.ndarray, np.ndarray]


class Drawn(es.nn.Module):
    """A network of a few layers, drawn at random: products or convolutions, norms, dropout, sums and stacks."""

    def __init__(self, rng: np.random.Generator):
        super().__init__()
        self.image = bool(rng.integers(2))
        self.dtype = str(rng.choice(("float32", "float64")))
        self.width = width = int(rng.choice(WIDTHS))
        self.classes = int(rng.integers(2, 6))
        self.layers, self.ways = es.nn.ModuleList(), []
        for _ in range(int(rng.integers(2, 8))):
            way = str(rng.choice(("product", "product", "norm", "drop", "residual", "stacked")))
            self.ways.append((way, ACTIVATIONS[rng.integers(len(ACTIVATIONS))]))
            if way == "norm":
                norm = es.nn.BatchNorm2d if self.image else es.nn.LayerNorm
                self.layers.append(norm(width, dtype=self.dtype))
            elif way == "drop":
                self.layers.append(es.nn.Dropout(0.3))
            else:
                self.layers.append(self.product(width * (1 + (way == "stacked")), width))
        self.last = es.nn.Linear(width, self.classes, dtype=self.dtype)

    def product(self, inner: int, outer: int) -> es.nn.Module:
        if self.image:
            return es.nn.Conv2d(inner, outer, 3, padding=1, dtype=self.dtype)
        return es.nn.Linear(inner, outer, dtype=self.dtype)

    def forward(self, x):
        before = x
        for layer, (way, act) in zip(self.layers, self.ways, strict=True):
            old = x
            x = layer(F.cat([x, before], 1)) if way == "stacked" else act(layer(x))
            before, x = old, x + old if way == "residual" else x
        return self.last(F.mean(x, (2, 3)) if self.image else x)

    def batch(self, rng: np.random.Generator) -> Batch:
        n = int(rng.choice((2, 3, 5) if self.image else (2, 17, 64, 131)))
        shape = (n, self.width, 9, 7) if self.image else (n, self.width)
        return rng.standard_normal(shape).astype(self.dtype), rng.integers(0, self.classes, n)


def refitted(run: Executable, limit: int) -> float:
    """The seconds of a program's plan under a limit. Raises what compiling raises."""
    bound, target = run.compiled.bound, run.target
    code = compile.GeneratedCode(bound, (), target, run.backend, run.threads)
    memory = MemoryLimit(limit, run.fixed_bytes()[0])
    costs = compile.predicted, autoconfig.floor, autoconfig.least_of_stages
    finite = -1 if run.compiled.finite is None else run.plan.graph.outputs.index(run.compiled.finite)
    context = PlanContext(target, *costs, code, bound, frozenset(), finite, MAX_STORED_BYTES, memory, (), False)
    plan = fit_memory(run.plan, context)
    return seconds(plan, code.kernels(plan))


def seconds(plan: Plan, code: Mapping[Kernel, CompiledKernel]) -> float:
    return sum(code[c.kernel].seconds * turns for _, c, turns in plan.kernel_calls())


def results(step: es.TrainStep, batch: Batch) -> list[np.ndarray]:
    losses = [step(*batch) for _ in range(2)]
    return [np.array(losses), *(np.array(v) for v in step.model.state_dict().values())]


def same(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def program(step: es.TrainStep) -> Executable:
    (run,) = step.compiler.programs.values()
    return run


def check_scale(make: Callable[[int | str | None], es.TrainStep], batch: Batch, rng, limits: int) -> bool:
    """Check every claim about the limits of one step; return whether any limit makes results be computed again."""
    free = make(None)
    with pytest.MonkeyPatch.context() as patch:
        # Recomputation precedes these; `refitted` begins with the plan of this program.
        patch.setenv("EINSMITH_WITHOUT", "together, joined updates, joined steps, copy coalescing")
        want = results(free, batch)
    run = program(free)
    whole = run.held_bytes
    with pytest.raises(MemoryLimitError, match="memory_limit=1 B is too little") as e:
        make(1).compile(*batch)
    needed = e.value.needed
    assert needed <= whole
    typed = re.search(r"little: at least ([0-9.]+ [kMG]?B) are needed", str(e.value))
    assert typed and size_of(typed[1], "least") >= needed
    for limit in (typed[1], needed):
        step = make(limit)
        same(results(step, batch), want)
        assert program(step).held_bytes <= step.memory_limit
    with pytest.raises(MemoryLimitError) as e:
        make(needed - 1).compile(*batch)
    assert e.value.needed == needed

    slowest = np.inf
    drawn = rng.integers(needed - (whole - sum(run.fixed_bytes())) // 8, whole + 64, limits)
    for limit in sorted({needed - 1, needed, whole - 1, whole, *map(int, drawn)}):
        try:
            made = refitted(run, limit)
        except MemoryLimitError as e:
            assert limit < needed == e.needed, (limit, needed, e.needed)
        else:
            assert needed <= limit, (limit, needed)
            assert made <= slowest * (1 + 1e-9), limit
            slowest = made
    assert slowest == seconds(run.plan, run.compiled.code)
    if needed < whole:
        step = make(int(rng.integers(needed, whole)))
        same(results(step, batch), want)
        assert program(step).held_bytes <= step.memory_limit
    return needed < whole


def check_drawn(seeds: Iterable[int], limits: int) -> int:
    """Check as many drawn networks; return how many compute something again."""
    again = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        batch = Drawn(rng).batch(rng)
        optimizer = (lambda: es.optim.SGD(lr=0.1)) if rng.integers(2) else (lambda: es.optim.AdamW(lr=0.01))

        def make(limit, seed=seed, optimizer=optimizer):
            es.manual_seed(seed)
            model = Drawn(np.random.default_rng(seed))
            return es.TrainStep(model, F.cross_entropy, optimizer(), memory_limit=limit, threads=2)

        try:
            again += check_scale(make, batch, rng, limits)
        except Exception as e:
            raise AssertionError(f"seed {seed}: {e}") from e
    return again


@pytest.mark.parametrize(
    "seeds, limits",
    [
        pytest.param((1, 3, 5), 2, id="of every kind"),  # rows and images, every kind of layer, both types
        *(pytest.param(range(n, n + 6), 12, id=f"from {n}", marks=pytest.mark.slow) for n in (0, 6, 12, 18)),
    ],
)
def test_limits_of_drawn_networks(seeds, limits):
    assert check_drawn(seeds, limits) >= 2


@pytest.mark.slow
def test_limits_of_many_drawn_networks():
    assert check_drawn(range(100, 300), 40) >= 100


def images(*shape: int) -> Callable[[np.random.Generator], Batch]:
    return lambda rng: (rng.standard_normal(shape).astype("f"), rng.integers(0, 10, shape[0]))


def tokens(rng: np.random.Generator) -> Batch:
    x = rng.integers(0, 97, (2, 33))
    return x[:, :-1], x[:, 1:]


def token_loss(output, target):
    return F.cross_entropy(output.reshape((-1, 97)), target.reshape((-1,)))


class Pointwise(es.nn.Module):
    """Convolutions of one pixel with batch norms: large results, few bytes of parameters."""

    def __init__(self):
        super().__init__()
        self.convolutions = es.nn.ModuleList([es.nn.Conv2d(64, 64, 1, bias=False) for _ in range(6)])
        self.norms = es.nn.ModuleList([es.nn.BatchNorm2d(64) for _ in range(6)])
        self.last = es.nn.Linear(64, 10)

    def forward(self, x):
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.last(x.mean((2, 3)))


class Recurrent(es.nn.Module):
    """A recurrent layer between products."""

    def __init__(self):
        super().__init__()
        self.inner, self.cell, self.out = es.nn.Linear(6, 7), es.nn.LSTM(7, 9, batch_first=True), es.nn.Linear(9, 9)
        self.last = es.nn.Linear(9, 10)

    def forward(self, x):
        x = F.tanh(self.cell(F.gelu(self.inner(x)))[0])
        for _ in range(5):
            x = F.gelu(self.out(x))
        return self.last(F.mean(x, 1))


def gpt() -> es.nn.Module:
    return es.models.get("gpt_small", vocabulary=97, width=32, layers=2, heads=4, positions=32)


NETWORKS = {
    "lenet5": (lambda: es.models.get("lenet5"), F.cross_entropy, images(17, 1, 28, 28)),
    "pointwise": (Pointwise, F.cross_entropy, images(3, 64, 17, 16)),
    "recurrent": (Recurrent, F.cross_entropy, images(31, 19, 6)),
    "gpt": (gpt, token_loss, tokens),
    "resnet18_cifar": (lambda: es.models.get("resnet18_cifar"), F.cross_entropy, images(2, 3, 32, 32)),
    "mobilenet_v1": (lambda: es.models.get("mobilenet_v1"), F.cross_entropy, images(2, 3, 48, 48)),
}


def check_network(name: str, rng: np.random.Generator, limits: int) -> None:
    made, loss, batch = NETWORKS[name]

    def make(limit):
        es.manual_seed(5)
        return es.TrainStep(made(), loss, es.optim.AdamW(lr=0.01), memory_limit=limit, threads=2)

    assert check_scale(make, batch(rng), rng, limits)


@pytest.mark.parametrize("limits", [2, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param("lenet5", marks=pytest.mark.slow), "pointwise"])
def test_limits_of_networks(name, limits, rng):
    check_network(name, rng, limits)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_limits_of_more_networks(name, rng):
    check_network(name, rng, 40)


@pytest.mark.parametrize("name", [pytest.param("lenet5", marks=pytest.mark.slow), "pointwise"])
def test_a_plan_takes_at_least_its_peak(name, monkeypatch):
    """A plan takes at least the peak of its results, so that plans whose peak is too large need not be measured."""
    fit = rematerialize.fit
    seen: list[tuple[int, int]] = []

    def checked(plan, outside, allowed, cost, measure):
        def measured(p):
            seen.append((rematerialize.peak(p, outside, cost), measure(p)))
            return seen[-1][1]

        return fit(plan, outside, allowed, cost, measured)

    monkeypatch.setattr("einsmith.schedule.pipeline.fit", checked)
    rng = np.random.default_rng(5)
    with pytest.raises(MemoryLimitError):
        made, loss, batch = NETWORKS[name]
        es.TrainStep(made(), loss, es.optim.SGD(lr=0.1), memory_limit=1).compile(*batch(rng))
    assert len(seen) > 1 and all(most <= taken for most, taken in seen)


def gathering(limit: int | str | None) -> es.TrainStep:
    es.manual_seed(5)
    model = Pointwise()
    return es.TrainStep(model, F.cross_entropy, es.optim.AdamW(lr=0.01), accumulate=2, memory_limit=limit, threads=2)


def test_the_least_is_enough_for_gathering_and_for_updating(rng):
    batch = NETWORKS["pointwise"][2](rng)
    want = results(gathering(None), batch)
    with pytest.raises(MemoryLimitError) as e:
        gathering(1)(*batch)
    needed = e.value.needed
    step = gathering(needed)
    same(results(step, batch), want)
    gather, update = sorted(step.compiler.programs.values(), key=lambda run: len(run.bound))
    assert max(run.held_bytes for run in (gather, update)) <= step.memory_limit
    # What the optimizer remembers is there while gradients are gathered.
    remembered = sum(s.memory.physical.nbytes for name, s in step.store.state.items() if "/#" not in name)
    assert gather.fixed_bytes()[0] >= sum(a.nbytes for a in gather.bound.values()) + remembered
    assert remembered > 1000 and abs(gather.fixed_bytes()[0] - update.fixed_bytes()[0]) < 1000
    with pytest.raises(MemoryLimitError) as e:
        gathering(needed - 1)(*batch)
    assert e.value.needed == needed


def test_memory_of_a_larger_limit_is_given_back(rng):
    made, loss, batch = NETWORKS["pointwise"]
    step, (x, y) = es.TrainStep(made(), loss, es.optim.SGD(lr=0.1), threads=2), batch(rng)
    step(x, y)
    run = program(step)
    step.memory_limit = run.held_bytes - run.arena_bytes // 4
    step(x, y)
    assert sum(program(step).fixed_bytes()) + step.compiler.arena.block.nbytes <= step.memory_limit
