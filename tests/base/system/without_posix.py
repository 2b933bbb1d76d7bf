"""A program that trains a network in a process without what only POSIX systems have in Python; on the command line is
the system that it takes itself for, win32 or darwin. The machine code is that of the real system."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ctypes
import importlib
import mmap
import os
import pkgutil
import platform
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request  # noqa: F401
from pathlib import Path
from types import SimpleNamespace

import click  # noqa: F401  # libraries look at the system when they are imported
import llvmlite.binding  # noqa: F401
import numpy as np
import platformdirs  # noqa: F401
import psutil  # noqa: F401
import rich.progress  # noqa: F401
import safetensors.numpy  # noqa: F401

OPTIONAL = {
    "torch", "onnx", "jax", "tensorflow", "sklearn", "mpi4py", "distributed", "triton", "accelerate", "PIL", "nccl",
    "transformers",
}  # fmt: skip
OS = (
    "fork register_at_fork getuid geteuid getgid uname getloadavg sysconf sched_getaffinity sched_setaffinity "
    "sched_yield SCHED_IDLE SCHED_OTHER sched_getscheduler sched_setscheduler nice killpg setsid getpgid statvfs "
    "O_NOFOLLOW RTLD_NOW RTLD_NOLOAD RTLD_GLOBAL RTLD_LOCAL mkfifo pread confstr set_blocking"
)
"""Names of the module `os` that Windows does not have (set_blocking: before Python 3.12)."""
SIGNALS = "SIGKILL SIGSTOP SIGCONT SIGHUP SIGALRM SIGUSR1 SIGUSR2 setitimer ITIMER_PROF ITIMER_REAL pthread_sigmask"
MAC_OS = "sched_getaffinity sched_setaffinity SCHED_IDLE sched_getscheduler sched_setscheduler"
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "syslog")


def remove(module: object, names: str) -> None:
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def be(name: str) -> None:
    """Take away what the system lacks; what it would be asked for, it refuses."""
    platform.uname(), platform.platform(), platform.processor(), tempfile.gettempdir(), sysconfig.get_config_vars()  # noqa: B018  # remembered
    if name == "win32":
        refuses = SimpleNamespace(**dict.fromkeys(WINDOWS, lambda *_: 0))
        ctypes.WinDLL = lambda *_, **__: refuses  # type: ignore[attr-defined]
        remove(os, OS)
        remove(signal, SIGNALS)
        remove(_signal, SIGNALS)
        remove(select, "poll epoll")
        remove(mmap, "MAP_PRIVATE MAP_ANONYMOUS MAP_SHARED")
        remove(time, "clock_gettime CLOCK_MONOTONIC")
        sys.modules.update(dict.fromkeys(MODULES))  # type: ignore[arg-type]  # they cannot be imported
    else:
        real, refuses = ctypes.CDLL, SimpleNamespace(sysctlbyname=lambda *_: -1)
        ctypes.CDLL = lambda name, *a, **k: refuses if name is None else real(name, *a, **k)  # type: ignore
        remove(os, MAC_OS)
    sys.modules.update(dict.fromkeys(OPTIONAL))  # type: ignore[arg-type]
    subprocess.Popen = None  # type: ignore
    sys.platform = name


WINDOWS = ("GetLogicalProcessorInformation", "IsProcessorFeaturePresent")


def main(folder: Path) -> None:
    """Import everything, train, save, continue, and describe the machine."""
    import einsmith as es

    for module in pkgutil.walk_packages(es.__path__, "einsmith."):
        if "peers" not in module.name and "frontends" not in module.name and "__main__" not in module.name:
            try:
                importlib.import_module(module.name)
            except ImportError as e:
                missing = e.__cause__ if isinstance(e.__cause__, ImportError) else e
                if (missing.name or "").partition(".")[0] not in OPTIONAL:
                    raise
    x, y = np.ones((8, 4), np.float32), np.zeros(8, np.int64)
    es.manual_seed(0)
    model = es.nn.Sequential(es.nn.Linear(4, 8), es.nn.ReLU(), es.nn.Linear(8, 3))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=0.01), threads=2)
    losses = [step(x, y) for _ in range(3)]
    es.save(step, folder / "run")
    again = es.load(folder / "run", model=model, loss=es.functional.cross_entropy, optimizer=es.optim.Adam(lr=0.01))
    losses.append(again(x, y))
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 4, losses
    from einsmith.cli import main as commands

    assert commands.run(["info", "--json"]) == 0


if __name__ == "__main__":
    be(sys.argv[1])
    main(Path(sys.argv[2]))
    print("trained")
