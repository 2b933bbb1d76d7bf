"""Run exported modules of WebAssembly in wasmtime, as NAME.js runs them in browsers."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file


def skip_without_tools() -> None:
    """Skip the test where modules can be neither linked nor run."""
    if importlib.util.find_spec("ziglang") is None and not (shutil.which("clang") and shutil.which("wasm-ld")):
        pytest.skip("no linker of WebAssembly (pip install ziglang)")
    pytest.importorskip("wasmtime", reason="no wasmtime (pip install wasmtime)")


def library(name: str) -> Callable[..., float]:
    """Return the function of C's library of a name."""
    function = getattr(ctypes.CDLL(ctypes.util.find_library("m")), name)
    kind = ctypes.c_float if name.endswith("f") else ctypes.c_double
    function.restype, function.argtypes = kind, [kind] * (1 if name in ("sin", "cos") else 2)
    return function


class WasmError(Exception):
    """Error of a module's function; code: what it returned."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


class WasmModel:
    """The module of a folder that `es.export` wrote, with the folder's weights."""

    def __init__(self, folder: Path):
        import wasmtime as w

        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.name = self.manifest["name"]
        config = w.Config()
        config.wasm_relaxed_simd = True
        self.store = w.Store(w.Engine(config))
        module = w.Module.from_file(self.store.engine, str(folder / f"{self.name}.wasm"))
        imports = [w.Func(self.store, i.type, library(i.name)) for i in module.imports]
        self.exports = w.Instance(self.store, module, imports).exports(self.store)
        out = self.allocate(8)
        self.check(self.call("create", out))
        self.model = int(np.frombuffer(self.read(out, 4), np.uint32)[0])
        for name, a in load_file(folder / "weights.safetensors").items():
            self.write(self.tensor(name), a)

    def call(self, function: str, *arguments: Any) -> Any:
        return self.exports[f"{self.name}_{function}"](self.store, *arguments)

    def allocate(self, nbytes: int) -> int:
        return self.call("allocate", nbytes)

    def read(self, at: int, nbytes: int) -> bytes:
        return bytes(self.exports["memory"].read(self.store, at, at + nbytes))

    def write(self, at: int, a: np.ndarray) -> None:
        self.exports["memory"].write(self.store, np.ascontiguousarray(a).tobytes(), at)

    def put(self, a: np.ndarray) -> int:
        at = self.allocate(a.nbytes)
        self.write(at, a)
        return at

    def tensor(self, name: str) -> int:
        return self.call("tensor", self.model, self.put(np.frombuffer(name.encode() + b"\0", np.uint8)))

    def check(self, code: int) -> None:
        if code:
            at = self.call("error", code)
            raise WasmError(self.read(at, 200).split(b"\0")[0].decode(), code)

    def value(self, role: str, *arrays: np.ndarray) -> float:
        out = self.allocate(8)
        self.check(self.call(role, self.model, *map(self.put, arrays), out))
        return float(np.frombuffer(self.read(out, 8))[0])

    def arrays(self, role: str, *arrays: np.ndarray) -> list[np.ndarray]:
        (function,) = (f for f in self.manifest["functions"] if f["role"] == role)
        shapes = [(tuple(r["shape"]), np.dtype(r["type"])) for r in function["results"]]
        sizes = [int(np.prod(shape)) * t.itemsize for shape, t in shapes]
        places = [self.allocate(size) for size in sizes]
        self.check(self.call(role, self.model, *map(self.put, arrays), *places))
        parts = zip(places, sizes, shapes, strict=True)
        return [np.frombuffer(self.read(at, size), t).reshape(shape) for at, size, (shape, t) in parts]

    def state(self) -> dict[str, np.ndarray]:
        out = {}
        for t in self.manifest["tensors"]:
            kind = np.dtype(t["type"])
            nbytes = int(np.prod(t["shape"])) * kind.itemsize
            out[t["name"]] = np.frombuffer(self.read(self.tensor(t["name"]), nbytes), kind).reshape(t["shape"])
        return out
