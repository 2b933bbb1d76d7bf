"""Run a server in a process that ends with its parent, which may be killed at any moment.

The process ends even if it is stopped, hangs or has not begun to run. `workers` is the parent's side. This file is run
by its path and imports only the standard library: importing the server may take a second, and the parent may be killed
meanwhile. The process also reads its input until that ends, as not every system notifies a process of its parent's
death.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import runpy
import signal
import sys
from typing import BinaryIO

PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl(2). The signal comes when the thread that started the process ends."""
MARK = b"\x93einsmit"
"""First bytes of a message; its length follows in 8 bytes, then a pickle."""
HEAD = len(MARK) + 8


def command(server: str) -> list[str]:
    """Return the command that runs a server as a process that ends with this one.

    server: a class without arguments, as "module:Class" or "path/of/a/file.py:Class"
    """
    return [sys.executable, "-P", __file__, str(os.getpid()), server]


def end_with(parent: int) -> None:
    """Ask the system to kill this process when its parent has ended, whatever it is doing. Only Linux supports it."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was requested
        sys.exit(1)


def encode(content: object) -> bytes:
    """Return a message: its mark, its length and the pickle of its content."""
    data = pickle.dumps(content)
    return MARK + len(data).to_bytes(8, "little") + data


def serve(server: object, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests with the results of a server's methods, until the input ends.

    A request is the name of a method and its arguments; an answer is True and the returned value, or False and the
    error in words.
    """
    while len(head := source.read(HEAD)) == HEAD:
        data = source.read(int.from_bytes(head[len(MARK) :], "little"))
        try:
            name, arguments = pickle.loads(data)
            answer = encode((True, getattr(server, name)(*arguments)))
        except Exception as e:  # reported to the caller
            answer = encode((False, f"{type(e).__name__}: {e}"))
        sink.write(answer)
        sink.flush()


def main(parent: int, server: str) -> None:
    """Serve requests on this process's own input and output."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets the signal too, and closes the input
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what the server reads or prints must not mix with messages
    os.dup2(2, 1)
    place, _, name = server.rpartition(":")
    module = runpy.run_path(place) if place.endswith(".py") else vars(importlib.import_module(place))
    serve(module[name](), source, sink)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
