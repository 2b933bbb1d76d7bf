"""The package trains without what only Linux, or only POSIX systems, have in Python (`without_posix`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["win32", "darwin"])
def test_a_network_is_trained(name: str, tmp_path: Path) -> None:
    script = Path(__file__).with_name("without_posix.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "EINSMITH_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(script), name, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0 and done.stdout.endswith("trained\n"), done.stderr
