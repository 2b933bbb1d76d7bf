"""Models whose losses are made of derivatives: interatomic potentials of other packages, and three without packages.

Each has a size "small", of which a step takes milliseconds, and a size "usual", which is that of its paper's examples
on a small batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from benchmarks.models_of_others import Trained
from benchmarks.potentials import networks, residuals
from benchmarks.potentials.molecules import Molecules
from benchmarks.potentials.packages import take

MODELS: dict[str, tuple[str, Callable[[bool], Trained]]] = {
    "SchNet": ("schnetpack", networks.schnet),
    "PaiNN": ("schnetpack", networks.painn),
    "MACE": ("mace", networks.mace),
    "ScaleShiftMACE": ("mace", networks.scale_shift_mace),
    "SchNet with forces": ("schnetpack", networks.schnet_with_forces),
    "ScaleShiftMACE with forces": ("mace", networks.scale_shift_mace_with_forces),
    "e3nn": ("e3nn", networks.e3nn),
    "TensorNet": ("torchmdnet", networks.tensornet),
    "EquivariantTransformer": ("torchmdnet", networks.equivariant_transformer),
    "KdV": ("", residuals.korteweg_de_vries),
    "WGAN-GP": ("", residuals.gradient_penalty),
    "MAML": ("", residuals.meta_learning),
}
"""The package of each, and its maker: a function of whether it is small. Those "with forces" compute them in the model
itself; of the others, energies are differentiated outside of it."""


def get(name: str, size: str = "small", dtype: torch.dtype = torch.float32, changing: bool = False) -> Trained:
    """Return a model with the weights of seed 0.

    Args:
        name: of `MODELS`.
        size: "small" or "usual".
        dtype: of the weights; PyTorch's default from here on, as some packages ask for it in their models.
        changing: whether each batch has edges of its own.

    Raises:
        ImportError: pip cannot get the package.
    """
    package, make = MODELS[name]
    if package and not take(package):
        raise ImportError(f"{name} is a model of {package}, which pip cannot get")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    trained = make(size == "small")
    trained.model.to(dtype).train()
    torch.set_default_dtype(dtype)
    if changing and isinstance(trained.batch, Molecules):
        trained = replace(trained, batch=replace(trained.batch, is_fixed=False))
    return trained
