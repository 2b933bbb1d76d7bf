"""Processes end with the one that has started them, at whatever moment that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from einsmith.base import servers

SLOW = "import pathlib, sys, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep(3600)"
PARENT = """
import subprocess, sys, time
from einsmith.base import servers
print(subprocess.Popen(servers.command(sys.argv[1])).pid, flush=True)
time.sleep(3600)
"""


def state(process: int) -> str:
    """As the system has it: T is stopped, Z has ended; empty where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait(until, looks: int = 3000) -> bool:
    """Looks, not seconds: a machine may stop for a while."""
    while not (found := until()) and looks:
        time.sleep(0.01)
        looks -= 1
    return found


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("what", ["module", "file"])
def test_a_starting_process_ends_with_its_parent(tmp_path: Path, monkeypatch, what: str, stopped: bool) -> None:
    """It imports something for an hour."""
    file = tmp_path / "slow_to_import.py"
    file.write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    name = f"{file.stem if what == 'module' else file}:Server"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, name], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert wait(file.with_suffix(".begun").exists)
        if stopped:
            os.kill(child, signal.SIGSTOP)
            assert wait(lambda: state(child) == "T")
        parent.kill()
        parent.wait()
        assert wait(lambda: state(child) in ("", "Z"))
    finally:
        if state(child) not in ("", "Z"):
            os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_an_orphan_at_the_start_ends(tmp_path: Path) -> None:
    file = tmp_path / "never.py"
    file.write_text("raise SystemExit(3)")
    words = servers.command(f"{file}:Server")
    assert subprocess.run(words).returncode == 3
    words[words.index(str(os.getpid()))] = "1"
    assert subprocess.run(words).returncode == 1
