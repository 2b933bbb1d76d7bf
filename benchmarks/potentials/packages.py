"""Packages of interatomic potentials, each with what it imports in a folder of its own beside the project's packages.

PyTorch and everything else that the project has installed stays as it is: pip takes none of what the packages depend
on, and their versions are those of the table. Where pip cannot get them, `folder` returns None.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from platformdirs import user_cache_dir

SHARED = "ase", "h5py", "lightning-utilities", "matscipy", "PyYAML", "torch-ema", "torchmetrics", "tqdm"
PACKAGES: dict[str, tuple[str, ...]] = {
    "mace": (
        "mace-torch==0.3.16", "e3nn==0.4.4", "opt-einsum-fx", "opt-einsum", *SHARED, "lmdb", "pandas", "prettytable",
        "wcwidth", "python-dateutil", "six", "python-hostlist", "orjson", "configargparse", "GitPython", "gitdb",
        "smmap",
    ),
    "schnetpack": (
        "schnetpack==2.1.1", *SHARED, "dirsync", "hydra-core", "omegaconf", "antlr4-python3-runtime", "fasteners",
        "pytorch-lightning", "tensorboard", "tensorboardX", "progressbar2", "python-utils",
    ),
    "e3nn": ("e3nn==0.6.0", "opt-einsum-fx", "opt-einsum"),
    "torchmdnet": ("torchmd-net==3.1.0", *SHARED),
}  # fmt: skip
"""Requirements by the name of the package that is imported."""
SECONDS = 300
"""Most time that pip is given."""


def folder(package: str) -> Path | None:
    """Return where a package lies, installed where it is not there yet; None where pip cannot get it."""
    required = PACKAGES[package]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    name = f"{package}-{hashlib.sha256(repr((required, version)).encode()).hexdigest()[:8]}"
    root = Path(user_cache_dir("einsmith", appauthor=False)) / "potentials"
    if (root / name).is_dir():
        return root / name
    root.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=root))
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    try:
        subprocess.run(
            [*pip, "--retries=1", "--no-deps", f"--target={new}", *required],
            check=True, timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.rename(new, root / name)
    except (subprocess.SubprocessError, OSError):
        shutil.rmtree(new, ignore_errors=True)
    return root / name if (root / name).is_dir() else None


def take(package: str) -> bool:
    """Make a package importable behind the project's own; return whether it is."""
    where = folder(package)
    if where is not None and str(where) not in sys.path:
        sys.path.append(str(where))
    return where is not None
