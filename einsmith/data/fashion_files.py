"""Read Fashion-MNIST: 60,000 and 10,000 gray images of clothes, 28x28, in MNIST's format (arXiv 1708.07747)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from einsmith.base.arguments import check_arguments
from einsmith.data.mnist_files import idx_files, read_split

CHECKSUMS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""SHA-256 of the unpacked files."""
MIRROR = "https://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Folder of the files in Debian's package dataset-fashion-mnist."""


@check_arguments
def fashion_mnist(
    split: str = "train", folder: str | os.PathLike | None = None, say: Callable[[str], None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read Fashion-MNIST as (x, y): images x float32 [N, 1, 28, 28] scaled to 0..1, labels y int64 [N] from 0 to 9.

    split: "train" (60,000) or "test" (10,000). The four idx files, plain or as .gz, are taken from `folder` alone where
    one is given; else from EINSMITH_DATA_DIR (in fashion-mnist or FashionMNIST/raw), the cache, Debian's package
    dataset-fashion-mnist, or the authors' mirror, and stay in the cache. Every file is checked by SHA-256. `say` gets a
    line before each slow step. Raises DataError, which says what to put where.
    """
    known = idx_files(
        "Fashion-MNIST",
        "fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw"),
        CHECKSUMS,
        (MIRROR,),
        places=(DEBIAN,),
        hint="Install Debian's package dataset-fashion-mnist, or put",
    )
    return read_split(known, split, folder, say)
