"""Interatomic potentials of mace-torch, schnetpack, e3nn and torchmd-net, unmodified, with random weights."""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as tf

from benchmarks.models_of_others import Batch, Trained
from benchmarks.potentials.molecules import ELEMENTS, Molecules, loss_of_forces, loss_of_results, mean_degree, sums

SMALL = Molecules(3, 6, 2.0)


def _mace(small: bool, name: str, width: int, own: bool = False, **more: Any) -> Trained:
    """A model of mace.modules, prepared for torch.compile by its own mace.tools.compile.

    Args:
        small: whether it is small.
        name: of the class.
        width: channels of l = 0, and of l = 1.
        own: whether the model itself returns forces.
        more: arguments of this class alone.
    """
    os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # e3nn 0.4.4 reads its constants with slices
    import numpy as np
    from e3nn import o3
    from mace import modules
    from mace.tools.compile import prepare

    molecules = SMALL if small else Molecules(4, 20, 4.0)
    blocks = modules.interaction_classes
    model = prepare(getattr(modules, name), allow_autograd=False)(
            r_max=molecules.cutoff, num_bessel=8, num_polynomial_cutoff=5, max_ell=2 if small else 3,
            interaction_cls=blocks["RealAgnosticResidualInteractionBlock"],
            interaction_cls_first=blocks["RealAgnosticInteractionBlock" if name == "MACE" else
                                         "RealAgnosticResidualInteractionBlock"],
            num_interactions=2, num_elements=len(ELEMENTS), hidden_irreps=o3.Irreps(f"{width}x0e + {width}x1o"),
            MLP_irreps=o3.Irreps("16x0e"), gate=tf.silu, atomic_energies=np.zeros(len(ELEMENTS)),
            avg_num_neighbors=mean_degree([molecules(0)]), atomic_numbers=list(ELEMENTS),
            correlation=2 if small else 3, radial_MLP=[8, 8] if small else [64, 64, 64], **more,
        )  # fmt: skip

    def energy(f: Callable, batch: Batch) -> torch.Tensor:
        return f(_graphs(batch, molecules), compute_force=False)["energy"]

    def results(f: Callable, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        of_model = f(_graphs(batch, molecules), training=True)
        return of_model["energy"], of_model["forces"]

    if own:
        return Trained(model, molecules, loss_of_results(results))
    return Trained(model, molecules, loss_of_forces(energy))


def _graphs(batch: Batch, molecules: Molecules) -> Batch:
    """Return a batch as mace-torch takes it."""
    positions = batch["positions"]
    return {
        "positions": positions,
        "node_attrs": tf.one_hot(batch["which"], len(ELEMENTS)).to(positions.dtype),
        "edge_index": batch["edges"],
        "shifts": positions.new_zeros(batch["edges"].shape[1], 3),
        "unit_shifts": positions.new_zeros(batch["edges"].shape[1], 3),
        "cell": positions.new_zeros(3 * molecules.count, 3),
        "batch": batch["molecule"],
        "ptr": torch.arange(molecules.count + 1) * molecules.atoms,
    }


def mace(small: bool) -> Trained:
    return _mace(small, "MACE", 4 if small else 32)


def scale_shift_mace(small: bool) -> Trained:
    return _mace(small, "ScaleShiftMACE", 4 if small else 32, atomic_inter_scale=0.8, atomic_inter_shift=0.1)


def scale_shift_mace_with_forces(small: bool) -> Trained:
    return _mace(small, "ScaleShiftMACE", 4 if small else 32, True, atomic_inter_scale=0.8, atomic_inter_shift=0.1)


def _schnetpack(small: bool, name: str, width: int, own: bool = False) -> Trained:
    """A representation of schnetpack with its own module of energies and, for `own`, of forces, as its training has."""
    torch.utils.data.dataloader.T_co = TypeVar("T_co", covariant=True)  # what schnetpack takes of older versions
    from schnetpack import atomistic, representation
    from schnetpack import nn as layers

    molecules = SMALL if small else Molecules(20, 20, 5.0)
    made = getattr(representation, name)(
        n_atom_basis=width, n_interactions=3, radial_basis=layers.GaussianRBF(n_rbf=8 if small else 20, cutoff=5.0),
        cutoff_fn=layers.CosineCutoff(5.0),
    )  # fmt: skip
    model = nn.Sequential(
        atomistic.PairwiseDistances(), made, atomistic.Atomwise(n_in=width, output_key="energy", aggregation_mode="sum")
    )

    def run(f: Callable, batch: Batch) -> dict[str, torch.Tensor]:
        senders, receivers = batch["edges"]
        return f(
            {
                "_positions": batch["positions"],
                "_atomic_numbers": batch["numbers"],
                "_offsets": batch["positions"].new_zeros(len(senders), 3),
                "_idx_i": receivers,
                "_idx_j": senders,
                "_idx_m": batch["molecule"],
                "_n_atoms": torch.full((molecules.count,), molecules.atoms),
            }
        )

    if own:
        model.append(atomistic.Forces())
        return Trained(model, molecules, loss_of_results(lambda f, batch: _energy_and_forces(run(f, batch))))
    return Trained(model, molecules, loss_of_forces(lambda f, batch: run(f, batch)["energy"]))


def _energy_and_forces(results: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return results["energy"], results["forces"]


def schnet_with_forces(small: bool) -> Trained:
    return _schnetpack(small, "SchNet", 8 if small else 128, True)


def schnet(small: bool) -> Trained:
    return _schnetpack(small, "SchNet", 8 if small else 128)


def painn(small: bool) -> Trained:
    return _schnetpack(small, "PaiNN", 8 if small else 64)


class Equivariant(nn.Module):
    """Energies by two messages of e3nn's tensor products, as in its guide to convolutions.

    Args:
        width: channels of each irreducible representation.
        cutoff: radius of the neighbourhoods (Angstrom).
        degree: mean number of neighbours.
        elements: number of kinds of atoms.
    """

    def __init__(self, width: int, cutoff: float, degree: float, elements: int):
        super().__init__()
        from e3nn import nn as layers
        from e3nn import o3

        self.cutoff, self.degree = cutoff, degree
        self.angles = o3.SphericalHarmonics("1x0e + 1x1o + 1x2e", normalize=True, normalization="component")
        inner = o3.Irreps(f"{width}x0e + {width}x1o + {width}x2e")
        self.first = o3.FullyConnectedTensorProduct(
            f"{elements}x0e", self.angles.irreps_out, inner, shared_weights=False
        )
        self.gate = layers.Gate(
            f"{width}x0e", [torch.tanh], f"{2 * width}x0e", [torch.sigmoid], f"{width}x1o + {width}x2e"
        )
        self.linear = o3.Linear(inner, self.gate.irreps_in)
        self.second = o3.FullyConnectedTensorProduct(
            self.gate.irreps_out, self.angles.irreps_out, "1x0e", shared_weights=False
        )
        self.weights = nn.ModuleList(
            layers.FullyConnectedNet([10, 16, product.weight_numel], tf.silu) for product in (self.first, self.second)
        )

    def forward(self, positions: torch.Tensor, kinds: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the energy of each atom."""
        from e3nn.math import soft_one_hot_linspace

        senders, receivers = edges
        vectors = positions[senders] - positions[receivers]
        lengths = vectors.norm(dim=1)
        radial = soft_one_hot_linspace(lengths, 0.0, self.cutoff, 10, "smooth_finite", cutoff=True) * 10**0.5
        angles = self.angles(vectors)

        def received(product: nn.Module, weights: nn.Module, x: torch.Tensor) -> torch.Tensor:
            messages = product(x[senders], angles, weights(radial)) / math.sqrt(self.degree)
            return messages.new_zeros(len(positions), messages.shape[1]).index_add(0, receivers, messages)

        x = self.gate(self.linear(received(self.first, self.weights[0], kinds)))
        return received(self.second, self.weights[1], x).squeeze(1)


def e3nn(small: bool) -> Trained:
    os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    from e3nn import set_optimization_defaults

    set_optimization_defaults(**EAGER)
    molecules = SMALL if small else Molecules(8, 20, 4.0)
    degree = mean_degree([molecules(0)])
    model = Equivariant(4 if small else 16, molecules.cutoff, degree, len(ELEMENTS))

    def energy(f: Callable, batch: Batch) -> torch.Tensor:
        kinds = tf.one_hot(batch["which"], len(ELEMENTS)).to(batch["positions"].dtype)
        return sums(f(batch["positions"], kinds, batch["edges"]), batch["molecule"], molecules.count)

    return Trained(model, molecules, loss_of_forces(energy))


EAGER: dict[str, Any] = {"jit_mode": "eager"}
"""Without TorchScript, whose modules TorchDynamo does not enter."""


class EdgesAsBox(nn.Module):
    """Distances along edges that are an input, in the place of torchmd-net's search for them, which needs warp.

    torchmd-net's models hand their argument `box` to this module alone, so edges come in there.
    """

    def forward(
        self, positions: torch.Tensor, _: torch.Tensor, edges: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (edges, distances, vectors)."""
        receivers, senders = edges
        vectors = positions[receivers] - positions[senders]
        is_loop = receivers == senders
        squares = (vectors**2).sum(1).masked_fill(is_loop, 1.0)
        return edges, squares.sqrt().masked_fill(is_loop, 0.0), vectors.clone()  # the models change them in place


class WithScalars(nn.Module):
    """A representation of torchmd-net with its own head of energies."""

    def __init__(self, representation: nn.Module, head: nn.Module):
        super().__init__()
        self.representation, self.head = representation, head

    def forward(
        self, positions: torch.Tensor, numbers: torch.Tensor, molecule: torch.Tensor, edges: torch.Tensor
    ) -> torch.Tensor:
        """Return the energy of each atom."""
        x, v, z, positions, molecule = self.representation(numbers, positions, molecule, edges)
        return self.head.pre_reduce(x, v, z, positions, molecule).squeeze(1)


def _torchmd(small: bool, path: str, head: str, width: int, **more: Any) -> Trained:
    ops = types.ModuleType("torchmdnet.extensions.ops")
    ops.get_neighbor_pairs_kernel = None  # type: ignore[attr-defined]
    sys.modules.setdefault(ops.__name__, ops)
    import importlib

    from torchmdnet.models import output_modules

    module, name = path.split(".")
    molecules = replace(SMALL, cutoff=4.5) if small else Molecules(8, 20, 5.0)
    representation = getattr(importlib.import_module(f"torchmdnet.models.{module}"), name)(
        hidden_channels=width, num_layers=2, num_rbf=8 if small else 32, max_z=10, **more
    )
    representation.distance = EdgesAsBox()
    model = WithScalars(representation, getattr(output_modules, head)(width, activation="silu", dtype=torch.float32))

    def energy(f: Callable, batch: Batch) -> torch.Tensor:
        loops = torch.arange(len(batch["numbers"])).repeat(2, 1)
        edges = torch.cat([batch["edges"], loops], 1)
        atoms = f(batch["positions"], batch["numbers"], batch["molecule"], edges)
        return sums(atoms, batch["molecule"], molecules.count)

    return Trained(model, molecules, loss_of_forces(energy))


def tensornet(small: bool) -> Trained:
    return _torchmd(small, "tensornet.TensorNet", "Scalar", 8 if small else 64)


def equivariant_transformer(small: bool) -> Trained:
    return _torchmd(
        small, "torchmd_et.TorchMD_ET", "EquivariantScalar", 8 if small else 64, num_heads=2 if small else 8
    )
