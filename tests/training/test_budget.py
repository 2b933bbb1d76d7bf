"""What exploring may cost: a part of the time of all steps, known by the steps in which nothing goes on."""

from __future__ import annotations

import random
from math import inf

import pytest

from einsmith.tuning.programs.budget import MAX_DISTURBED_RATIO, MAX_STEP_RATIO, RESUME_SHARE, Budget


def test_the_loss_is_the_time_beyond_usual_steps() -> None:
    budget = Budget(0.02)
    assert not budget.can_spend(1e-9) and budget.usual == 0.0
    for _ in range(100):
        budget.step(1e-3)
    assert budget.usual == pytest.approx(1e-3) and budget.lost_seconds == 0.0
    assert budget.can_spend(1.99e-3) and not budget.can_spend(2.01e-3)
    budget.step(1.5e-3, is_trial=True)
    budget.step(1e-3, outside=1e-3, worked=1e-3)
    assert budget.lost_seconds == pytest.approx(1.5e-3) and budget.total == pytest.approx(103.5e-3)
    assert budget.can_spend(0.5e-3) and not budget.can_spend(0.6e-3)


def test_cold_caches_after_work_are_not_counted_as_usual() -> None:
    """The first step after it meets cold caches, and says nothing about the usual ones."""
    budget = Budget(0.02)
    for n in range(1000):
        budget.step((1.2, 1.1, 1.0, 1.0)[n % 4], workshop=None if n % 4 else inf)
    assert budget.usual == pytest.approx(1.0) and budget.lost_seconds == pytest.approx(250 * 0.3, rel=0.05)


def test_steps_beside_the_workshop_lose_no_more_than_it_works() -> None:
    """What they take longer beyond that, something else has taken."""
    budget = Budget(0.02)
    for _ in range(1000):
        budget.step(1e-3)
    for n in range(11):
        budget.step(2e-3, workshop=0.5 + n * 1e-3)
    assert budget.lost_seconds == pytest.approx(10e-3), "what it takes to start is no loss of steps"
    for _ in range(1000):
        budget.step(2e-3, workshop=0.6)
    assert budget.lost_seconds == pytest.approx(0.1)


def test_one_step_stands_for_others() -> None:
    budget = Budget(0.02)
    for _ in range(100):
        budget.step(1e-3, count=10)
    budget.step(1.5e-3, workshop=inf, count=10)
    assert budget.total == pytest.approx(1.015) and budget.lost_seconds == pytest.approx(5e-3)


def test_bookkeeping_counts_as_loss() -> None:
    """Unless something else keeps this thread from running."""
    budget = Budget(0.02)
    for _ in range(1000):
        budget.step(1e-3, outside=1e-5, worked=1e-5)
    assert budget.lost_seconds == pytest.approx(1e-2) and budget.total == pytest.approx(1.01)
    budget.step(1e-3, outside=1.0, worked=1e-3)
    assert budget.lost_seconds == pytest.approx(1e-2 + MAX_DISTURBED_RATIO * 1e-3)
    assert budget.waiting_share == pytest.approx(0.01)


def test_work_rests_until_there_is_time_again() -> None:
    budget = Budget(0.02)
    for _ in range(10):
        budget.step(1.0)
    budget.step(1.1, workshop=inf)
    assert not budget.is_spent
    budget.step(2.0, workshop=inf)
    assert budget.is_spent
    while budget.is_spent:
        assert budget.lost_seconds > RESUME_SHARE * 0.02 * budget.total
        budget.step(1.0)
    assert budget.lost_seconds <= RESUME_SHARE * 0.02 * budget.total


def test_steps_that_take_more_and_less_lose_nothing(seed: int = 0) -> None:
    """Noise is the same in all steps: what counts is their mean."""
    draw, budget = random.Random(seed), Budget(0.02)
    for n in range(20_000):
        budget.step(1e-3 * draw.uniform(0.8, 1.2), workshop=None if n % 4 > 1 else inf)
    assert budget.lost_seconds < 0.0025 * budget.total


def test_a_machine_that_slept() -> None:
    budget = Budget(0.02)
    for _ in range(50):
        budget.step(1.0)
    budget.step(1e6)
    assert budget.usual <= 1 + MAX_DISTURBED_RATIO / 50
    budget.step(1e9, is_trial=True)
    assert budget.lost_seconds <= MAX_STEP_RATIO * budget.usual


def test_a_first_step_that_is_cold_hides_no_loss() -> None:
    budget = Budget(0.02)
    budget.step(2.0)
    lost = 0.0
    for n in range(100):
        budget.step(0.1 if n % 2 else 0.133, workshop=None if n % 2 else inf)
        lost += 0.033 * (n % 2 == 0)
    assert budget.lost_seconds >= lost - 4 * 0.1 and budget.is_spent


def test_gains_of_the_machine_are_not_credited_forever() -> None:
    """A machine that becomes faster by half says nothing about what is lost later."""
    budget = Budget(0.02)
    for _ in range(100):
        budget.step(1.0)
    for _ in range(200):
        budget.step(0.5, workshop=inf)
    for _ in range(20):
        budget.step(1.5, workshop=inf)
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
        budget.step(seconds + (0.0 if quiet else more * 0.3e-3), workshop=None if quiet else inf)
    assert 0.5 * lost <= budget.lost_seconds <= lost + 0.25 * 0.02 * budget.total


def test_long_steps_of_a_trial_count_in_full() -> None:
    budget = Budget(0.02)
    for _ in range(100):
        budget.step(1.0)
    budget.step(20.0, is_trial=True)
    assert budget.lost_seconds == pytest.approx(19.0)
