"""Training steps of Einsmith on a card, and their time by events of the card."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gpu.problems import Case
from benchmarks.worker import module_of
from einsmith.driver.bound_program import BoundProgram
from einsmith.training import TrainStep
from einsmith.training.definition import batch_arrays


class Session:
    """A training step of a case on the card. options: those of TrainStep."""

    def __init__(self, case: Case, precision: str, **options: Any):
        problem = case.problem()
        options = {"device": "cuda", "precision": precision, **options}
        build = module_of(problem, "einsmith").build
        training: Any = build(problem, problem.arrays(), 1, "einsmith", **options)
        self._training = training
        self.trainer: TrainStep = training.trainer
        self.arrays: list[np.ndarray] = batch_arrays(training.batch)

    @property
    def run(self) -> BoundProgram:
        """The program of the batch."""
        run = self.trainer.compiler.find_or_compile(self.arrays)
        with self.trainer.store.guard:
            self.trainer.parts.set_numbers(self.arrays)
        return run

    def upload(self) -> None:
        """Do nothing: each step copies the batch to the card."""

    def loss(self, value: float) -> float:
        """Return a loss, which a step waits for."""
        return value

    def step(self) -> float:
        """Train on the batch, which is copied to the card, and return the loss."""
        return self._training.step()

    def results(self) -> dict[str, np.ndarray]:
        """Return the parameters and the running statistics."""
        return self._training.results()

    def seconds(self, count: int) -> float:
        """Return the seconds of a step among `count` one after the other on the batch as it lies on the card."""
        run = self.run
        program: Any = run.program
        card, device = program.card, program.card.device
        first, last = device.event(), device.event()

        def launch() -> None:
            device.record(first, device.stream)
            for _ in range(count):
                program.launch(device.stream)
            device.record(last, device.stream)

        def run_all() -> int:
            with card.lock:
                return program.finish(program.begin(launch))

        with self.trainer.store.guard:
            run.run_protected(run.runs.call, self.arrays, run_all)
        return device.elapsed(first, last) / count
