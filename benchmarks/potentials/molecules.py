"""Random molecules, and the loss of energies and forces that potentials are trained with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.models_of_others import Batch

ELEMENTS = (1, 6, 7, 8)
"""Atomic numbers of hydrogen, carbon, nitrogen and oxygen."""
SPACING, SHAKE = 1.4, 0.15
"""Distance of neighbours on a grid, and the standard deviation of an atom's position around its point, in Angstrom."""
FORCES = 10.0
"""Weight of the mean squared error of the forces in the loss; that of the energies has weight 1."""
Energy = Callable[[Callable, Batch], torch.Tensor]


@dataclass(frozen=True)
class Molecules:
    """Batches of molecules whose atoms lie around the points of a cubic grid.

    Args:
        count: molecules of a batch.
        atoms: atoms of a molecule.
        cutoff: greatest distance of two atoms between which there is an edge (Angstrom).
        is_fixed: whether every batch has the edges of the first one; otherwise each has as many as its atoms give.
    """

    count: int
    atoms: int
    cutoff: float
    is_fixed: bool = True

    def __call__(self, seed: int) -> Batch:
        """Return a batch: positions, atomic numbers, molecule of each atom, edges in both directions, targets."""
        generator = torch.Generator().manual_seed(seed)
        n = self.count * self.atoms
        side = next(k for k in range(1, 99) if k**3 >= self.atoms)
        point = torch.cartesian_prod(*[torch.arange(float(side))] * 3).reshape(-1, 3)[: self.atoms]
        shifts = SHAKE * torch.randn(n, 3, generator=generator)
        positions = SPACING * point.repeat(self.count, 1) + shifts
        fixed = torch.Generator().manual_seed(0)
        which = torch.randint(len(ELEMENTS), (n,), generator=fixed if self.is_fixed else generator)
        molecule = torch.arange(self.count).repeat_interleave(self.atoms)
        edges = self(0)["edges"] if self.is_fixed and seed else self._edges(positions, molecule)
        return {
            "positions": positions,
            "which": which,
            "numbers": torch.tensor(ELEMENTS)[which],
            "molecule": molecule,
            "edges": edges,
            "energies": torch.randn(self.count, generator=generator),
            "forces": torch.randn(n, 3, generator=generator),
        }

    def _edges(self, positions: torch.Tensor, molecule: torch.Tensor) -> torch.Tensor:
        """Return (sender, receiver) of every edge [2, edges]."""
        near = torch.cdist(positions, positions) < self.cutoff
        return (near & (molecule[:, None] == molecule) & ~torch.eye(len(positions), dtype=torch.bool)).nonzero().T


def loss_of_forces(energy: Energy) -> Energy:
    """Return the loss of energies and of forces, by a function of (model, batch) that returns energies."""

    def results(f: Callable, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        energies = energy(f, batch)
        (gradient,) = torch.autograd.grad(energies.sum(), batch["positions"], create_graph=True)
        return energies, -gradient

    return loss_of_results(results)


def loss_of_results(results: Callable[[Callable, Batch], tuple[torch.Tensor, torch.Tensor]]) -> Energy:
    """Return the loss of energies and of forces, by a function of (model, batch) that returns both."""

    def loss(f: Callable, batch: Batch) -> torch.Tensor:
        batch = {**batch, "positions": batch["positions"].detach().requires_grad_()}
        energies, forces = results(f, batch)
        errors = (energies - batch["energies"]) ** 2, (forces - batch["forces"]) ** 2
        return errors[0].mean() + FORCES * errors[1].mean()

    return loss


def sums(values: torch.Tensor, molecule: torch.Tensor, count: int) -> torch.Tensor:
    """Return the sum of each molecule's values."""
    return values.new_zeros(count).index_add(0, molecule, values)


def mean_degree(batches: Sequence[Batch]) -> float:
    """Return the mean number of edges that an atom receives."""
    return sum(b["edges"].shape[1] for b in batches) / sum(len(b["numbers"]) for b in batches)
