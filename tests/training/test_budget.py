"""What exploring may cost: a part of the time of all steps, known by the steps in which nothing goes on."""

from __future__ import annotations

import random

import pytest

from einsmith.tuning.programs.budget import MAX_DISTURBED_RATIO, MAX_STEP_RATIO, RESUME_SHARE, Budget


def test_the_loss_is_the_time_beyond_usual_steps() -> None:
    budget = Budget(0.02)
    assert not budget.can_spend(1e-9) and budget.usual == 0.0
    for _ in range(100):
        budget.step(1e-3, quiet=True)
    assert budget.usual == pytest.approx(1e-3) and budget.lost_seconds == 0.0
    assert budget.can_spend(1.99e-3) and not budget.can_spend(2.01e-3)
    budget.step(1.5e-3, quiet=False)
    budget.work(1e-3)
    assert budget.lost_seconds == pytest.approx(1.5e-3) and budget.total == pytest.approx(101.5e-3)
    assert budget.can_spend(0.5e-3) and not budget.can_spend(0.6e-3)


def test_cold_caches_after_work_are_not_counted_as_usual() -> None:
    """The first step after it meets cold caches, and says nothing about the usual ones."""
    budget = Budget(0.02)
    for n in range(1000):
        budget.step((1.2, 1.1, 1.0, 1.0)[n % 4], quiet=n % 4 > 0)
    assert budget.usual == pytest.approx(1.0) and budget.lost_seconds == pytest.approx(250 * 0.3, rel=0.05)


def test_work_of_threads_counts_once() -> None:
    """As what it takes, or as what steps take longer, whichever is more."""
    budget = Budget(0.02)
    for _ in range(1000):
        budget.step(1e-3, quiet=True)
    for _ in range(5):
        budget.step(2e-3, quiet=False, threads=True)
    assert budget.lost_seconds == pytest.approx(5e-3)
    budget.work(4e-3)
    assert budget.lost_seconds == pytest.approx(5e-3)
    budget.work(2e-3)
    assert budget.lost_seconds == pytest.approx(6e-3)


def test_work_between_steps_counts_as_loss() -> None:
    budget = Budget(0.02)
    for _ in range(1000):
        budget.step(1e-3, quiet=True, more_seconds=1e-5)
    assert budget.lost_seconds == pytest.approx(1e-2) and budget.total == pytest.approx(1.01)


def test_work_rests_until_there_is_time_again() -> None:
    budget = Budget(0.02)
    for _ in range(10):
        budget.step(1.0, quiet=True)
    budget.step(1.1, quiet=False)
    assert not budget.stopped
    budget.step(2.0, quiet=False)
    assert budget.stopped
    while budget.stopped:
        assert budget.lost_seconds > RESUME_SHARE * 0.02 * budget.total
        budget.step(1.0, quiet=True)
    assert budget.lost_seconds <= RESUME_SHARE * 0.02 * budget.total


def test_steps_that_take_more_and_less_lose_nothing(seed: int = 0) -> None:
    """Noise is the same in all steps: what counts is their mean."""
    draw, budget = random.Random(seed), Budget(0.02)
    for n in range(20_000):
        budget.step(1e-3 * draw.uniform(0.8, 1.2), quiet=n % 4 > 1)
    assert budget.lost_seconds < 0.002 * budget.total


def test_a_machine_that_slept() -> None:
    budget = Budget(0.02)
    for _ in range(50):
        budget.step(1.0, quiet=True)
    budget.step(1e6, quiet=True)
    assert budget.usual <= 1 + MAX_DISTURBED_RATIO / 50
    budget.step(1e9, quiet=False)
    assert budget.lost_seconds <= MAX_STEP_RATIO * budget.usual


def test_a_first_step_that_is_cold_hides_no_loss() -> None:
    budget = Budget(0.02)
    budget.step(2.0, quiet=True)
    lost = 0.0
    for n in range(100):
        budget.step(0.1 if n % 2 else 0.133, quiet=n % 2 == 1)
        lost += 0.033 * (n % 2 == 0)
    assert budget.lost_seconds >= lost - 4 * 0.1 and budget.stopped


def test_gains_of_the_machine_are_not_credited_forever() -> None:
    """A machine that becomes faster by half says nothing about what is lost later."""
    budget = Budget(0.02)
    for _ in range(100):
        budget.step(1.0, quiet=True)
    for _ in range(200):
        budget.step(0.5, quiet=False)
    for _ in range(20):
        budget.step(1.5, quiet=False)
    assert budget.lost_seconds > 5


@pytest.mark.parametrize("more", [0.0, 0.01, 0.1])
def test_the_disturbance_by_another_program_is_not_counted_as_loss(more: float, seed: int = 0) -> None:
    """A program that takes a processor for milliseconds at a time lengthens some of the quiet steps, and as many of
    those beside the workshop, which take `more` longer."""
    draw, budget, lost = random.Random(seed), Budget(0.02), 0.0
    for n in range(40_000):
        quiet = n // 1000 % 2 == 0
        seconds = 0.3e-3 * draw.uniform(0.95, 1.1) + (draw.uniform(1e-3, 6e-3) if draw.random() < 1 / 13 else 0.0)
        lost += 0.0 if quiet else more * 0.3e-3
        budget.step(seconds + (0.0 if quiet else more * 0.3e-3), quiet)
    assert 0.5 * lost <= budget.lost_seconds <= lost + 0.25 * 0.02 * budget.total


def test_long_steps_of_a_trial_count_in_full() -> None:
    budget = Budget(0.02)
    for _ in range(100):
        budget.step(1.0, quiet=True)
    budget.step(20.0, quiet=False, trial=True)
    assert budget.lost_seconds == pytest.approx(19.0)
