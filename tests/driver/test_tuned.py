"""What tuning has found is what programs are compiled to, unless it cannot be; a text stands for one configuration."""

from __future__ import annotations

import html
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith.api.tracing import trace_call
from einsmith.cli.explain import gather
from einsmith.cli.kernel_report import text_of
from einsmith.cli.report_page import page
from einsmith.cost.facts import Target
from einsmith.driver.executable import Executable
from einsmith.driver.object_code import ObjectCode
from einsmith.kernels import autoconfig
from einsmith.kernels.pattern import describe
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.kernels import database, records
from einsmith.tuning.kernels.decisions import format_choice, parse_choice
from einsmith.tuning.kernels.override import overriding
from einsmith.tuning.kernels.records import Record
from einsmith.tuning.programs import graph_search
from tests.caches import CODE, forget
from tests.kernels.runner import WIDE
from tests.kernels.samples import capsule_da, strided_conv_dx, strided_dx
from tests.kernels.test_space import KERNELS, mutants


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> None:
    """A store of the test's own; what other tests have compiled is not met."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(database, "_unusable", {})
    forget(CODE, UNFOLLOWED)


def compiled(formula: str, *arrays: np.ndarray, threads: int = 1) -> Executable:
    traced = trace_call(es.op(formula), arrays, {}, frozenset())
    return Executable(traced.graph, traced.bind, threads)


def recorded(kernel: Kernel, target: Target, text: str) -> None:
    records.record_choice(
        kernel, target, Record(kernel.digest.hex(), text, 1e-3, 0.01, 2e-3, time.time(), 1, "of a test")
    )


SOFTMAX = "m[i] = max[k](x[i,k])\ns[i] = sum[k](exp(x[i,k]-m[i]))\ny[i,k] = exp(x[i,k]-m[i])/s[i]"


def samples() -> dict[str, Kernel]:
    """One of every pattern at least."""
    x = np.zeros((300, 70), np.float32)
    (rows,) = compiled(SOFTMAX, x).calls
    squares = es.grad(lambda t, ids: (es.functional.embedding(ids, t) ** 2).sum())
    traced = trace_call(squares, (x, np.zeros(50, np.int64)), {})
    calls = Executable(traced.graph, traced.bind, 1).calls
    (scatter,) = (c.kernel for c in calls if c.kernel.stages[0].template.is_scatter)
    selected = trace_call(lambda x: es.functional.argsort(x, 0), (x,), {})
    (selection,) = (c.kernel for c in Executable(selected.graph, selected.bind, 1).calls)
    more = {"rows of softmax": rows.kernel, "scatter": scatter, "capsule": capsule_da(2, 4, 8, 4, 2)}
    more["selection"] = selection
    return KERNELS | more | {"strided": strided_dx(2, 8, 3, 5), "joint": strided_conv_dx(2, 3, 8, 16, 5)}


def test_texts_and_configurations_correspond() -> None:
    met = set()
    for name, kernel in samples().items():
        for target in (WIDE, Target(), replace(WIDE, winograd=True, cores=2)):
            for pattern in autoconfig.eligible_patterns(kernel, target):
                if not pattern.match(kernel):
                    continue
                configs = list(pattern.configs(kernel, target))
                assert len({format_choice(pattern, c) for c in configs}) == len(configs)
                for config in configs[:7]:
                    choice = parse_choice(kernel, target, format_choice(pattern, config))
                    assert (choice.pattern, choice.config) == (pattern, config), name
                met.add(pattern.name)
    assert met >= {p.name for p in autoconfig.PATTERNS} | {autoconfig.ROWS.name}


def test_texts_of_configurations_outside_the_space(rng) -> None:
    contraction = autoconfig.pattern_of("contraction")
    for name in ("product", "padded", "pieces", "weights"):
        for config in mutants(contraction, KERNELS[name], WIDE, rng, 10):
            assert parse_choice(KERNELS[name], WIDE, format_choice(contraction, config)).config == config


UNFOLLOWED = "records of tuning that cannot be followed"
PRODUCT = "C[i,j] = sum[k](A[i,k]*B[k,j])"


def test_records_are_compiled(rng, monkeypatch) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((37, 53), (53, 41)))
    before = compiled(PRODUCT, a, b)
    kernel, target = before.calls[0].kernel, before.target
    other = format_choice(
        autoconfig.pattern_of("reduction"), autoconfig.pattern_of("reduction").configs(kernel, target)[0]
    )
    recorded(kernel, target, other)
    for _ in range(2):  # made, and found again
        run = compiled(PRODUCT, a, b)
        assert (run.kernels[0].pattern, run.kernels[0].tuned, run.kernels[0].decision) == ("reduction", True, other)
        assert run.describe().splitlines()[-1].endswith("tuned")
        np.testing.assert_allclose(run((a, b))[1][0], a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    assert not compiled(PRODUCT, a, b, threads=2).kernels[0].tuned or run.target.cores == 2
    with overriding({kernel.digest.hex(): "contraction mr=3"}):
        run = compiled(PRODUCT, a, b)
    assert run.kernels[0].pattern == "contraction" and not run.kernels[0].tuned and "3x" in run.kernels[0].config
    monkeypatch.setenv("EINSMITH_TUNED", "0")
    run = compiled(PRODUCT, a, b)
    assert run.kernels[0] == before.kernels[0] and "tuned" not in run.describe()


WRONG = ["nonsense", "contraction mr=77", "contraction mr=28 nv=8", "contraction mr", "\0", ""]


@pytest.mark.parametrize("text", WRONG)
def test_unusable_records_are_ignored_with_a_warning(rng, text) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((37, 53), (53, 41)))
    before = compiled(PRODUCT, a, b)
    kernel, target = before.calls[0].kernel, before.target
    recorded(kernel, target, text)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (run,) = compiled(PRODUCT, a, b).kernels
        forget(CODE)  # from disk, where nothing is lowered
        (again,) = compiled(PRODUCT, a, b).kernels
    assert (run.config, run.tuned, run.decision) == (before.kernels[0].config, False, "")
    assert run.unfollowed == again.unfollowed and bool(run.unfollowed) == bool(text)
    assert [w.category for w in said] == [es.EinsmithWarning] * bool(text), "once for a record"
    if text:
        told, name = str(said[0].message), kernel.digest.hex()
        assert f"einsmith tune --forget {name[:8]}" in told and repr(text) in told and describe(kernel) in told
        # an override of the same text is an error as ever
        with pytest.raises(es.EinsmithError), overriding({name: text}):
            compiled(PRODUCT, a, b)


def test_another_process_says_it_of_code_that_it_finds_on_disk(rng) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((31, 15), (15, 16)))
    run = compiled(PRODUCT, a, b)
    recorded(run.calls[0].kernel, run.target, "mine a=1")
    with pytest.warns(es.EinsmithWarning, match="mine a=1"):
        compiled(PRODUCT, a, b)
    forget(CODE, UNFOLLOWED)
    with pytest.warns(es.EinsmithWarning, match="mine a=1"):
        compiled(PRODUCT, a, b)


SUM = "s[i] = sum[k](x[i,k])"


def test_every_record_that_cannot_be_followed_is_said_once(rng) -> None:
    given = {PRODUCT: [rng.standard_normal(x).astype(np.float32) for x in ((17, 15), (15, 16))],
             SUM: [rng.standard_normal((13, 7)).astype(np.float32)]}  # fmt: skip
    runs = [compiled(f, *arrays) for f, arrays in given.items()]
    names = [run.calls[0].kernel.digest.hex()[:8] for run in runs]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for text in ("mine a=1", "mine a=2", "mine a=1"):
            for run in runs:
                recorded(run.calls[0].kernel, run.target, text)
            for _ in range(3):
                for f, arrays in given.items():
                    compiled(f, *arrays)
    told = [str(w.message) for w in said]
    assert [sum(name in t and f"mine a={n}'" in t for t in told) for name in names for n in (1, 2)] == [1] * 4
    assert len(told) == 4


def test_plans_show_a_record_that_is_not_followed(rng) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((19, 15), (15, 16)))
    before = compiled(PRODUCT, a, b)
    assert "cannot be used" not in before.describe()
    recorded(before.calls[0].kernel, before.target, "mine a=1")
    with pytest.warns(es.EinsmithWarning, match="mine a=1"):
        run = compiled(PRODUCT, a, b)
    report = gather(run, [a, b], 3, False)
    (kernel,) = report["kernels"]
    assert kernel["unfollowed"] == run.kernels[0].unfollowed and not kernel["tuned"]
    page_text = html.unescape(page(report | {"what": "a product", "batch": None}))
    for shown in (run.describe(), text_of(report), page_text):
        assert "the record 'mine a=1' cannot be used" in shown


def test_a_record_that_is_not_followed_is_no_measurement_of_the_kernel(rng) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((29, 15), (15, 16)))
    before = compiled(PRODUCT, a, b)
    kernel, target = before.calls[0].kernel, before.target
    recorded(kernel, target, "reduction")
    assert graph_search.price(compiled(PRODUCT, a, b)) == 1e-3
    recorded(kernel, target, "mine a=1")
    with pytest.warns(es.EinsmithWarning, match="mine a=1"):
        assert graph_search.price(compiled(PRODUCT, a, b)) == before.kernels[0].seconds


def test_exported_programs_say_it_too(rng) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((23, 15), (15, 16)))
    run = compiled(PRODUCT, a, b)
    kernel, target = run.calls[0].kernel, run.target
    recorded(kernel, target, "mine a=1")
    with pytest.warns(es.EinsmithWarning, match="mine a=1"):
        (made,) = ObjectCode().compile([kernel], target)
    assert made.unfollowed and not made.tuned


def test_a_damaged_store_is_no_hindrance(rng, capfd) -> None:
    a, b = (rng.standard_normal(x).astype(np.float32) for x in ((37, 53), (53, 41)))
    database.path_of().parent.mkdir()
    database.path_of().write_bytes(b"garbage" * 999)
    np.testing.assert_allclose(compiled(PRODUCT, a, b)((a, b))[1][0], a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    assert "is damaged" in capfd.readouterr().err


def test_tuning_a_kernel_leaves_the_others_as_they_are() -> None:
    """Fusion and layouts go by what the model predicts of its own choices."""
    es.manual_seed(0)
    model = es.nn.Sequential(
        es.nn.Conv2d(3, 8, 3, padding=1), es.nn.BatchNorm2d(8), es.nn.ReLU(), es.nn.MaxPool2d(2), es.nn.Flatten(),
        es.nn.Linear(8 * 8 * 8, 10),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    batch = rng.standard_normal((8, 3, 16, 16), np.float32), rng.integers(0, 10, 8)

    def step() -> tuple[Executable, float]:
        es.manual_seed(0)
        made = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.0), threads=1)
        made.compile(*batch)
        return next(iter(made.compiler.programs.values())), made(*batch)

    before, loss = step()
    for call in before.calls:
        choice = autoconfig.choose(call.kernel, before.target)
        slowest = max(choice.alternatives, key=lambda a: a[2].rank)  # what would change any decision most
        recorded(call.kernel, before.target, format_choice(autoconfig.pattern_of(slowest[0]), slowest[1]))
    after, found = step()
    assert [c.kernel for c in after.calls] == [c.kernel for c in before.calls]
    assert all(k.tuned for k in after.kernels)
    assert found == pytest.approx(loss, rel=1e-5)
