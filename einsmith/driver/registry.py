"""Register back ends under the names that targets use for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from einsmith.base import environment, locks
from einsmith.base.arguments import show
from einsmith.base.errors import ArgumentError, CompileError
from einsmith.cost import facts
from einsmith.cost.facts import Target
from einsmith.driver.backend import Backend
from einsmith.driver.cpu import CPU
from einsmith.gpu.cards import CARDS, CUDA
from einsmith.kernels import autoconfig

BACKENDS: dict[str, Backend] = {CPU.name: CPU}
DEFAULT: Backend = CPU
"""The back end whose target programs are compiled for where none is given."""

_DEVICE = re.compile(rf"{facts.CPU}|{CUDA}(:\d{{1,3}})?")


def register(backend: Backend) -> None:
    """Register a back end, so that programs for targets with its name are compiled by it. Raises CompileError where
    the name is taken, or where one of its patterns has the name of another pattern of another back end."""
    if backend.name in BACKENDS:
        raise CompileError(f"there is a back end {backend.name!r} already; give the new one another name")
    others = {p for known in BACKENDS.values() for p in known.patterns} - set(backend.patterns)
    used_names = {p.name for p in others} | {autoconfig.ROWS.name}
    if common_names := sorted(used_names & {p.name for p in backend.patterns}):
        raise CompileError(f"there is a pattern {common_names[0]!r} already; give the new one another name")
    BACKENDS[backend.name] = backend
    autoconfig.OTHERS[backend.name] = backend.patterns


@contextmanager
def compiling_for(backend: Backend) -> Iterator[None]:
    """Compile programs of the default device by another back end of its name inside the `with` block. Programs that
    other threads compile meanwhile are compiled so, too."""
    global DEFAULT
    held, DEFAULT = DEFAULT, backend
    BACKENDS[held.name] = backend
    try:
        yield
    finally:
        DEFAULT = BACKENDS[held.name] = held


def check_device(device: str | None, ordinal: int = 0) -> str | None:
    """Return the name of a device in full: "cpu"; "cuda:" and the number of a card ("cuda" is the one of the number
    `ordinal`); or the name of a kind of card (`gpu.cards.CARDS`), for which programs are compiled and do not run. None
    where none is named, for the one that EINSMITH_DEVICE names. Raises ArgumentError."""
    if device is None:
        return None
    if not isinstance(device, str) or not (_DEVICE.fullmatch(device) or device in CARDS):
        raise ArgumentError(
            f'device={show(device)} must be "cpu", "cuda", or a card by its number, as in "cuda:1"; or, to compile for '
            f"a card that is not there, {', '.join(CARDS)}"
        )
    return f"{device}:{ordinal}" if device == CUDA else device


def backend_for(device: str | None, ordinal: int = 0) -> Backend:
    """Return the back end of a device. device: as `check_device` returns it; ordinal: the card that "cuda" in
    EINSMITH_DEVICE means.

    Raises:
        DeviceError: there is no such card, or no driver for it."""
    device = device or check_device(environment.DEVICE.get(), ordinal)
    if device in (None, facts.CPU):
        return DEFAULT
    assert device is not None
    with locks.IMPORTING:
        from einsmith.driver import cuda  # imported late: few programs run on cards

        if device not in BACKENDS:
            make = partial(backend_for, device)
            is_kind = device in CARDS
            register(cuda.of_kind(device, make) if is_kind else cuda.of_card(int(device.rpartition(":")[2]), make))
    return BACKENDS[device]


def target_of(device: str | None, threads: int, ordinal: int = 0) -> Target:
    """Return the machine that programs of a device run on. The arguments are those of `backend_for`."""
    return backend_for(device, ordinal).target(threads)


def backend_of(target: Target) -> Backend:
    """Return the back end of a target. Raises CompileError where there is none."""
    backend = BACKENDS.get(target.backend)
    if backend is None:
        raise CompileError(f"no back end {target.backend!r} for {target!r}; there are {', '.join(BACKENDS)}")
    return backend
