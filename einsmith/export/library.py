"""Call an exported library from Python through ctypes; this file needs only NumPy and may be copied elsewhere."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

_LONGEST = 2000
"""Most characters of a path that `_open` tries."""
_BITS = np.dtype([("bfloat16", np.uint16)])


class CodeError(RuntimeError):
    """Error of a library's function that returned a code other than 0, `code`."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class _LibraryFunctions:
    """The functions of a folder's shared library, by their names without the library's own before them.

    Raises FileNotFoundError and ValueError where the folder has no library of this name and identity."""

    def __init__(self, folder: Path, name: str, identity: str):
        self._name, self._library = name, _open(folder.resolve(), name, identity)
        for function, result, arguments in (
            ("create", c_int, [c_char_p, c_int, POINTER(c_void_p)]),
            ("destroy", None, [c_void_p]),
            ("load", c_int, [c_void_p, c_char_p]),
            ("save", c_int, [c_void_p, c_char_p]),
            ("tensor", c_void_p, [c_void_p, c_char_p]),
            ("error", c_char_p, [c_int]),
            ("steps", c_int64, [c_void_p]),
            ("set", c_int, [c_void_p, c_char_p, c_double]),
            ("get", c_int, [c_void_p, c_char_p, POINTER(c_double)]),
            ("reports", POINTER(c_double), [c_void_p]),
        ):
            if hasattr(self._library, f"{name}_{function}"):
                self[function].restype, self[function].argtypes = result, arguments

    def __getitem__(self, name: str) -> Any:
        return getattr(self._library, f"{self._name}_{name}")


class Library:
    """The library in a folder that es.export wrote. weights: a file of initial tensors, by default the folder's own;
    threads: number of threads, 0 for as many as the library was exported for.

    step, evaluate and predict take arrays of the shapes in `manifest`; where the library has several shapes, the arrays
    select one. An exported function is called as the library itself. Raises `error` for an unsuitable processor, file
    or data, `unfit` for arrays of other shapes or types, FileNotFoundError and ValueError for a folder that is no
    export.
    """

    error: Any = CodeError
    unfit: Any = ValueError

    def __init__(self, folder: Any, weights: Any = None, threads: int = 0):
        self.folder = Path(folder)
        self.manifest: dict[str, Any] = json.loads(_plain(self.folder / "manifest.json").read_bytes())
        if self.manifest.get("format") != "einsmith-export":
            raise ValueError(f"{self.folder} is not an exported library")
        self.name: str = self.manifest["name"]
        if self.manifest["target"]["triple"].startswith("wasm"):
            raise ValueError(f"it is a module of WebAssembly, which {self.name}.js loads in a browser or in Node")
        self._functions = _LibraryFunctions(self.folder, self.name, self.manifest["identity"])
        self._calls: dict[str, list[dict[str, Any]]] = {}
        for call in self.manifest["functions"]:
            self._calls.setdefault(call["role"], []).append(call)
        self._handle = ctypes.c_void_p()
        source = self.folder / "weights.safetensors" if weights is None else Path(weights)
        self._check(self._functions["create"](bytes(source), threads, ctypes.byref(self._handle)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self.error(
            f"{self.name} is a model in native memory and can be neither copied nor pickled; write its tensors "
            "with save(path), and open the folder again with weights=path"
        )

    # -- what it computes

    def step(self, *batch: Any) -> float:
        """Train on a batch (inputs..., target) and return its loss. Raises `error` where the loss is not finite."""
        return self._loss("train", batch)

    def evaluate(self, *batch: Any) -> float:
        """Return the loss of a batch (inputs..., target) in evaluation mode."""
        return self._loss("evaluate", batch)

    def predict(self, *inputs: Any, **named: Any) -> Any:
        """Return the model's output in evaluation mode. named: the last inputs by their names in `manifest`."""
        return self._arrays("predict", self._in_order("predict", inputs, named))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the exported function and return its result; several results are a flat tuple.

        named: the last arguments by their names in `manifest`."""
        return self._arrays("call", self._in_order("call", arguments, named))

    # -- what it holds

    @property
    def steps(self) -> int:
        """Number of updates made so far."""
        return self._functions["steps"](self._model)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the model's parameters and buffers, as Module.load_state_dict takes them."""
        tensors = {t["name"]: t for t in self.manifest["tensors"] if t["kind"] in ("weight", "buffer")}
        copies = {name: self._copy(t) for name, t in tensors.items()}
        return copies | {n: copies[of].copy() for n, of in self.manifest["aliases"].items() if of in copies}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return copies of all tensors that `save` writes, with the optimizer's state and the step's counters."""
        return {t["name"]: self._copy(t) for t in self.manifest["tensors"]}

    def save(self, path: Any) -> None:
        """Write all tensors to a safetensors file."""
        self._check(self._functions["save"](self._model, bytes(Path(path))))

    def load(self, path: Any) -> None:
        """Load all tensors from a safetensors file; where one does not fit, none is loaded."""
        self._check(self._functions["load"](self._model, bytes(Path(path))))

    def get(self, name: str) -> float:
        """Return the value of a setting, such as "lr", at the next step."""
        value = ctypes.c_double()
        self._check(self._functions["get"](self._model, name.encode(), ctypes.byref(value)))
        return value.value

    def set(self, name: str, value: float) -> None:
        """Set a setting for all further steps; NaN restores the values of its table."""
        self._check(self._functions["set"](self._model, name.encode(), value))

    @property
    def reports(self) -> dict[str, float]:
        """Values that the last step reported in addition to its loss, by name."""
        names = self.manifest["reports"]
        values = self._functions["reports"](self._model) if names else ()
        return {name: values[n] for n, name in enumerate(names)}

    def close(self) -> None:
        """End the library's threads and free its memory. No method may be called afterwards."""
        if getattr(self, "_handle", None):  # it is not there where `create` was not reached
            self._functions["destroy"](self._handle)
            self._handle = ctypes.c_void_p()

    __del__ = close

    # -- calls

    @property
    def _model(self) -> Any:
        if not self._handle:
            raise self.error(f"{self.name} is closed")
        return self._handle

    def _array(self, x: Any, n: int) -> np.ndarray:
        """Return argument n of a call as a C-contiguous array."""
        return np.asarray(x, order="C")

    def _in_order(self, role: str, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Append the arguments given by name to the others. Raises `unfit` unless the names are those of the missing
        arguments."""
        if not named:
            return positional
        names = [p["name"] for call in self._calls.get(role, [])[:1] for p in call["arguments"]]
        if set(named) != set(names[len(positional) :]):
            shown = f"{len(positional)} by position and {', '.join(named)} by name"
            raise self.unfit(f"{self.name} takes {', '.join(names) or 'no such call'}; given {shown}")
        return (*positional, *(named[n] for n in names[len(positional) :]))

    def _check(self, code: int) -> None:
        if code:
            raise self.error(f"{self.name}: {self._functions['error'](code).decode()}", code)

    def _run(self, role: str, args: tuple[Any, ...], results: Any) -> Any:
        """Call the function of a role whose arguments have the shapes of `args`, and return its results.

        results: function (call) -> (memory for the results, pointers to it). Raises `unfit` where no function fits."""
        arrays = [self._array(x, n) for n, x in enumerate(args)]
        known = self._calls.get(role, [])
        for call in known:
            places = call["arguments"]
            if [list(a.shape) for a in arrays] != [p["shape"] for p in places]:
                continue
            arrays = [self._widen(a, p) for a, p in zip(arrays, places, strict=True)]
            outputs, pointers = results(call)
            function = self._functions[call["function"].removeprefix(f"{self.name}_")]
            function.restype = ctypes.c_int
            self._check(function(self._model, *(ctypes.c_void_p(a.ctypes.data) for a in arrays), *pointers))
            return outputs
        wanted = "; or ".join(", ".join(f"{p['name']} {p['type']}{p['shape']}" for p in c["arguments"]) for c in known)
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
        raise self.unfit(f"{self.name} takes {wanted or 'no such call'}; given {shapes}")

    def _loss(self, role: str, batch: tuple[Any, ...]) -> float:
        loss = ctypes.c_double()
        return self._run(role, batch, lambda call: (loss, [ctypes.byref(loss)])).value

    def _arrays(self, role: str, args: tuple[Any, ...]) -> Any:
        def results(call: dict[str, Any]) -> Any:
            outputs = tuple(np.empty(r["shape"], _type(r["type"])) for r in call["results"])
            return outputs, [ctypes.c_void_p(a.ctypes.data) for a in outputs]

        arrays = self._run(role, args, results)
        return arrays[0] if len(arrays) == 1 else arrays

    def _copy(self, tensor: dict[str, Any]) -> np.ndarray:
        at = self._functions["tensor"](self._model, tensor["name"].encode())
        out = np.empty(tensor["shape"], _type(tensor["type"]))
        ctypes.memmove(out.ctypes.data, at, out.nbytes)
        return out

    def _widen(self, array: np.ndarray, place: dict[str, Any]) -> np.ndarray:
        """Widen an array to an argument's type: integers to integers, floats to floats. Raises `unfit`."""
        wanted = _type(place["type"])
        if array.dtype == wanted:
            return array
        if array.dtype.kind != wanted.kind or not np.can_cast(array.dtype, wanted):
            raise self.unfit(f"{self.name}: {place['name']} is {array.dtype}; it must be {wanted}")
        return array.astype(wanted)


def _open(folder: Path, name: str, identity: str) -> ctypes.CDLL:
    """Open the shared library and check its identity.

    The system returns a library that is still loaded from the same path, even if its file was replaced. So other
    spellings of the path are tried until the identity agrees."""
    file = f"lib{name}.so"
    path = str(_plain(folder / file, ": the folder has the source of a library, which must be compiled first"))
    while True:
        library = ctypes.CDLL(path)
        identify = library[f"{name}_identity"]
        identify.restype = ctypes.c_char_p
        if identify().decode() == identity:
            return library
        if len(path) > _LONGEST:
            raise ValueError(f"{file} is not the library that manifest.json describes")
        path = f"{path[: -len(file)]}./{file}"


def _plain(path: Path, why: str = "") -> Path:
    """Return the path of a plain file. Raises FileNotFoundError where there is none."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path.name} is missing{why}")
    return path


def _type(name: str) -> np.dtype:
    return _BITS if name == "bfloat16" else np.dtype(name)
