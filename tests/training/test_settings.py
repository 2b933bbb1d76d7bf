"""The settings of a step: objects, keywords and attributes are three ways to say one thing."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

import einsmith as es
from tests.training.small import arrays, batches, net, same

OTHERS = {
    "clip_grad_norm": 0.5, "norm_type": 3.0, "clip_grad_value": 0.1, "accumulate": 2, "ema": 0.9, "trained": "sum",
    "precision": "bf16", "winograd": True, "separate_exponentials": True,
    "threads": 1, "device": "cpu", "sizes": "shared", "max_stored": 1 << 20,
    "memory_limit": 1 << 30, "mode": "dynamic", "tune": 5.0, "executor": None,
}  # fmt: skip
"""A value of each setting that is another than its default, where there is one."""
PARTS = {"updates": es.UpdateSettings, "compilation": es.CompileSettings, "tuning": es.TuningSettings}


def step_of(**options) -> es.TrainStep:
    return es.TrainStep(net("float32"), es.functional.cross_entropy, es.optim.SGD(lr=0.5), **options)


@pytest.mark.parametrize("part", PARTS)
def test_objects_keywords_and_attributes_are_the_same(part: str) -> None:
    values = {f.name: OTHERS[f.name] for f in fields(PARTS[part])}
    as_object, as_keywords, as_attributes = step_of(**{part: PARTS[part](**values)}), step_of(**values), step_of()
    for name, value in values.items():
        setattr(as_attributes, name, value)
    for step in (as_object, as_keywords, as_attributes):
        assert getattr(step, part) == PARTS[part](**values)
        assert {n: getattr(step, n) for n in values} == values


def test_keywords_come_over_objects() -> None:
    step = step_of(updates=es.UpdateSettings(ema=0.5, accumulate=3), accumulate=2)
    assert step.updates == es.UpdateSettings(ema=0.5, accumulate=2)
    step.change(updates=es.UpdateSettings(ema=0.25), clip_grad_norm=1.0)
    assert step.updates == es.UpdateSettings(ema=0.25, clip_grad_norm=1.0)


def test_steps_that_share_settings_change_them_apart() -> None:
    shared = es.UpdateSettings(clip_grad_norm=0.1)
    first, second = step_of(updates=shared), step_of(updates=shared)
    for batch in batches(3, dtype="float32"):
        assert first(*batch) == second(*batch)
    first.clip_grad_norm = None
    for batch in batches(2, seed=7, dtype="float32"):
        first(*batch), second(*batch)
    assert second.updates == shared and first.grad_norm is None
    with pytest.raises(AssertionError):
        same(arrays(first), arrays(second))
    with pytest.raises(FrozenInstanceError):
        shared.ema = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": es.TuningSettings()}, "updates=.* must be an UpdateSettings"),
        ({"accumulate": 0}, "UpdateSettings: accumulate=0"), ({"ema": 1.0}, "ema=1.0"),
        ({"max_stored": "much"}, "max_stored='much' is not a size"), ({"memory": 1}, "no option 'memory'"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(options: dict, message: str) -> None:
    step = step_of()
    before = step.updates, step.compilation, step.tuning
    for call in (lambda: step_of(**options), lambda: step.change(**options)):
        with pytest.raises(es.ArgumentError, match=message):
            call()
    assert (step.updates, step.compilation, step.tuning) == before
