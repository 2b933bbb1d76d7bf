"""Sums over cards by NCCL, on a stand-in for its bindings: no card is needed, and none is tested."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from einsmith.base.errors import DeviceError
from einsmith.gpu import cuda
from einsmith.gpu.cuda import driver

MODULE = "einsmith.gpu.cuda.nccl"


class NCCLError(Exception):
    pass


class UniqueId:
    def __init__(self, raw: bytes = bytes(range(128))):
        self.raw = np.frombuffer(raw, np.uint8).copy()

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.raw)

    from_buffer = classmethod(lambda cls, raw: cls(raw))

    @property
    def ptr(self) -> int:
        return self.raw.ctypes.data


class Bindings(ModuleType):
    """nccl.bindings.nccl, which notes its calls."""

    NCCLError, UniqueId = NCCLError, UniqueId

    def __init__(self) -> None:
        super().__init__("nccl.bindings.nccl")
        self.calls: list[tuple] = []
        self.failing = ""

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.failing:
            raise NCCLError("InvalidUsage (5): invalid usage\nmore lines")

    def get_version(self) -> int:
        self._note("version")
        return 23203

    def get_unique_id(self) -> Any:
        return np.arange(128, dtype=np.uint8)

    def comm_init_rank(self, size: int, unique: int, rank: int) -> int:
        raw = bytes((np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * 128).from_address(unique))).tolist())
        self._note("init", size, raw, rank)
        return 77

    def group_start(self) -> None:
        self._note("start")

    def group_end(self) -> None:
        self._note("end")

    def all_reduce(self, *arguments: int) -> None:
        self._note("sum", *arguments)

    def comm_destroy(self, handle: int) -> None:
        self._note("destroy", handle)


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bindings]:
    made, package, outer = Bindings(), ModuleType("nccl.bindings"), ModuleType("nccl")
    package.nccl = made  # type: ignore[attr-defined]
    for name, module in (("nccl", outer), ("nccl.bindings", package), ("nccl.bindings.nccl", made)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("NCCL_RUNTIME_CONNECT", "0")
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    forget()
    yield made
    forget()


def forget() -> None:
    """Have the next import read the module anew."""
    sys.modules.pop(MODULE, None)
    vars(cuda).pop("nccl", None)


@contextmanager
def current() -> Iterator[None]:
    yield


def test_sums_of_one_bucket_are_one_group_of_calls(bindings: Bindings) -> None:
    nccl = importlib.import_module(MODULE)
    nccl.check()
    unique = nccl.unique_id()
    assert unique == bytes(range(128))
    group = nccl.NcclCommunicator(unique, 1, 2, current)
    group.all_reduce((1000, 2000), (3, 5), "f32", 9)
    group.all_reduce((3000,), (7,), "f64", 9)
    del group
    gc.collect()
    assert bindings.calls == [
        ("version",), ("init", 2, unique, 1),
        ("start",), ("sum", 1000, 1000, 3, 7, 0, 77, 9), ("sum", 2000, 2000, 5, 7, 0, 77, 9), ("end",),
        ("start",), ("sum", 3000, 3000, 7, 8, 0, 77, 9), ("end",),
        ("destroy", 77),
    ]  # fmt: skip


@pytest.mark.parametrize("call", ["init", "sum", "end"])
def test_failures_say_what_helps(call: str, bindings: Bindings) -> None:
    nccl = importlib.import_module(MODULE)
    bindings.failing = call
    what = "the group of 2 cards" if call == "init" else "a sum of 8 elements"
    with pytest.raises(DeviceError, match=rf"NCCL failed at {what}: InvalidUsage \(5\): invalid usage; see that each"):
        nccl.NcclCommunicator(bytes(128), 0, 2, current).all_reduce((1, 2), (3, 5), "f32", 9)
    assert call == "init" or bindings.calls.count(("end",)) == 1  # whatever fails, the group is not left open


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nccl", "nccl.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    forget()
    with pytest.raises(DeviceError, match=r"pip install 'einsmith\[nccl\]'"):
        driver._nccl()


def test_the_real_library() -> None:
    """What needs no card."""
    pytest.importorskip("nccl.bindings", reason="nccl4py is not installed")
    nccl = importlib.import_module(MODULE)
    nccl.check()
    first, second = nccl.unique_id(), nccl.unique_id()
    assert len(first) == len(second) == 128 and first != second
