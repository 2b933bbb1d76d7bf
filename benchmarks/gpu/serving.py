"""Processes that use the card: each answers requests, and what goes wrong in it ends that request alone.

A fault on a card (an access outside of memory) makes the whole process useless for the card. So Einsmith and each peer
have a process of their own, which is started again after a fault, after its death, and where it takes too long.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.gpu.record import Deadline
from einsmith.base.errors import ArgumentError, DeviceError
from einsmith.base.workers import Failed, Lost, Worker

AVAILABLE = "not available"
"""Status of what the library, or the machine, says that it does not do."""


class NotAvailable(Exception):
    """A peer has no program of this kind."""


class Server:
    """What a process offers: `attempt` calls a method and returns its dictionary with a status."""

    fake: bool

    def attempt(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Return the dictionary that a method returns, with the status "ok" where it has none; or a status and a
        reason: what is "not available" is refused by the library's own error, all else is "failed". `is_lost`: whether
        the process must be started again."""
        try:
            return {"status": "ok", **(getattr(self, name)(*arguments) or {})}
        except (ArgumentError, NotAvailable) as e:
            return {"status": AVAILABLE, "reason": _line(e)}
        except DeviceError as e:
            return {"status": "failed", "reason": f"DeviceError: {_line(e)}", "is_lost": True}
        except Exception as e:
            lost = "CUDA error" in str(e) or "CUDA_ERROR" in str(e)
            return {"status": "failed", "reason": f"{type(e).__name__}: {_line(e)}", "is_lost": lost}


def _line(e: BaseException) -> str:
    """Return the beginning of an error's text as one line."""
    return " ".join(str(e).split())[:500]


class Client:
    """A server in a process of its own.

    Args:
        server: the class, as "module:Class"
        fake: whether the card is an interpreter
        deadline: end of all requests
    """

    environment: ClassVar[Mapping[str, str]] = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # else JAX takes three quarters of the card's memory
        "EINSMITH_CHECK": "0",
        "EINSMITH_CALIBRATE": "0",  # the CPU's programs are compared with, and not timed
    }

    def __init__(self, server: str, fake: bool, deadline: Deadline):
        os.environ.update(self.environment)
        self._worker, self._deadline = Worker(server), deadline
        self._worker.set_up(fake)

    def ask(self, name: str, *arguments: Any, limit: float = 600.0) -> dict[str, Any]:
        """Return the answer of `Server.attempt`.

        limit: most seconds, after which the process is ended and the request has failed. Raises OutOfTime where the
        whole run's time is over.
        """
        self._deadline.check()
        try:
            answer = self._worker.ask("attempt", name, *arguments, limit=min(limit, self._deadline.left))
        except Lost as e:
            self._deadline.check()
            late = "did not end within" in str(e)
            return {"status": "too slow" if late else "failed", "reason": f"{e}", "is_lost": True}
        except Failed as e:  # the server could not be set up
            missing = "ModuleNotFoundError" in str(e) or "ImportError" in str(e)
            return {"status": AVAILABLE if missing else "failed", "reason": str(e)}
        if answer.get("is_lost"):
            self._worker.close()
        return {k: v for k, v in answer.items() if k != "is_lost" or v}

    def close(self) -> None:
        """End the process."""
        self._worker.close()
