"""Write the C source of a library: the run time, then the library's data, then its public functions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from einsmith.base import files
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import DtypeError
from einsmith.base.templates import render
from einsmith.export import exported, traces
from einsmith.export.calls import LibraryCall
from einsmith.export.exported import ExportSubject
from einsmith.export.processors import Processor
from einsmith.export.relocatable import ARENA, FUNCTIONS, SPARE, TABLE, Data, WordTarget

RUNTIME = Path(__file__).parent / "runtime"
REGIONS = (TABLE, FUNCTIONS, SPARE, ARENA, "constants", "results")
"""Regions of memory that words point to, in the order of runtime/machine.c; tensors follow, one region each."""
_FILE_TYPES = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "u8": "U8",
    "bool": "BOOL",
}
VIOLATED = 2000
"""Return code of a failing first check, as in runtime/machine.c; other checks follow in order."""
_LINE = 64
"""Alignment of constants and results, in bytes."""


class TensorEntry(NamedTuple):
    """A tensor's entry in the header of a file: the text before its offsets, and the offsets with the closing
    brackets."""

    head: str
    place: str


def entries(subject: ExportSubject) -> dict[str, TensorEntry]:
    """Return the header entries of all saved tensors, by name."""
    headers, at = {}, 0
    for t in saved_tensors(subject):
        shape = ",".join(map(str, t.array.shape))
        key, kind = json.dumps(t.name, ensure_ascii=False), _FILE_TYPES[dtype_of(t.array.dtype).name]
        head = f'{key}:{{"dtype":"{kind}","shape":[{shape}],"data_offsets":['
        headers[t.name] = TensorEntry(head, f"{at},{at + t.array.nbytes}]}}")
        at += t.array.nbytes
    return headers


def saved_tensors(subject: ExportSubject) -> list[exported.Lasting]:
    """Return the tensors that weight files hold: all lasting tensors but the numbers set before each run."""
    return [t for t in subject.memories.tensors if t.kind != exported.NUMBER]


def file_header(subject: ExportSubject) -> bytes:
    """Return the safetensors header of a file with all saved tensors, padded to 8 bytes, as the library writes it."""
    text = "{" + ",".join(e.head + e.place for e in entries(subject).values()) + "}"
    return text.encode() + b" " * (-len(text.encode()) % 8)


def weights(subject: ExportSubject) -> bytes:
    """Return the content of a safetensors file with the current values of all saved tensors."""
    head = file_header(subject)
    parts = [np.ascontiguousarray(t.array).tobytes() for t in saved_tensors(subject)]
    return len(head).to_bytes(8, "little") + head + b"".join(parts)


def initializer(fields: Mapping[str, Any]) -> str:
    """Format a C initializer of a struct with the given fields."""
    return "{\n    " + ",\n    ".join(f".{name} = {value}" for name, value in fields.items()) + "\n}"


class LibrarySource:
    """The text of a library's C source, and the requirements on its object code.

    constants: bytes of all constants; functions: numbers of the backend's functions, in the order of the library's
    function table, which programs index; violations: messages of failing checks."""

    def __init__(
        self,
        name: str,
        subject: ExportSubject,
        programs: Sequence[Data],
        calls: Sequence[LibraryCall],
        processor: Processor,
        pool_bytes: int,
    ):
        self.name, self.subject, self.calls, self.processor = name, subject, calls, processor
        self.tables: list[tuple[str, str, list[str]]] = []
        self.violations: list[str] = []
        self.functions: list[int] = []
        self._tensor = {t.name: n for n, t in enumerate(subject.memories.tensors)}
        self._region = {id(t.array): len(REGIONS) + n for n, t in enumerate(subject.memories.tensors)}
        self._offset: dict[int, int] = {}
        self.constants = self._pack(subject.memories.constants)
        results = 0
        rows = []
        for n, data in enumerate(programs):
            row, size = self._program(n, data)
            rows.append(row)
            results = max(results, size)
        self._array("struct program", "programs", rows)
        self.library = self._library(results, pool_bytes, len(programs))

    def text(self, identity: str) -> str:
        """Return the whole source. identity: the string that the library's function NAME_identity returns."""
        is_alone, training = self.processor.is_wasm, self.subject.training
        parts = ["machine.c", "library.c", *([] if is_alone else ["files.c"]), *(["training.c"] if training else [])]
        return render(
            RUNTIME / "source.c",
            name=self.name,
            system="wasm.h" if is_alone else "posix.h",
            records=files.read_text(RUNTIME / "../../codegen/entry/records.h"),
            parts=parts,
            is_alone=is_alone,
            training=training,
            tables=self.tables,
            library=self.library,
            calls=self.calls,
            identity=identity,
        )

    # -- data

    def _pack(self, arrays: Iterable[np.ndarray]) -> bytes:
        """Concatenate the constants, each aligned to _LINE bytes, and note their offsets."""
        out = bytearray()
        for a in arrays:
            out += bytes(-len(out) % _LINE)
            self._offset[id(a)] = len(out)
            out += np.ascontiguousarray(a).tobytes()
        return bytes(out)

    def _array(self, kind: str, name: str, items: Sequence[str]) -> str:
        """Add a table to the source and return its name. An empty table gets one element, as C has no empty arrays."""
        items = items or ["{0}" if kind.startswith("struct") else "0"]
        width = 1 if items[0].startswith(('"', "{")) else 8
        rows = [", ".join(items[n : n + width]) for n in range(0, len(items), width)]
        self.tables.append((kind, name, rows))
        return name

    def _place(self, place: WordTarget, bind: Mapping, starts: Sequence[int]) -> tuple[int, int]:
        """Return (region, offset in bytes, or number of a function) of a word's target that is not an argument."""
        owner, offset = place
        if owner == FUNCTIONS:
            if offset not in self.functions:
                self.functions.append(offset)
            return REGIONS.index(FUNCTIONS), self.functions.index(offset)
        if isinstance(owner, str):
            return REGIONS.index(owner), offset
        if isinstance(owner, tuple):
            return REGIONS.index("results"), starts[owner[1]] + offset
        array = bind[owner]
        if id(array) in self._region:
            return self._region[id(array)], offset
        return REGIONS.index("constants"), self._offset[id(array)] + offset

    def _program(self, n: int, data: Data) -> tuple[str, int]:
        """Add the tables of program `n`. Return its entry in the table of programs, and the bytes of its results."""
        traced = self.subject.graphs[n]
        starts, end = [], 0
        for size in data.fresh:
            starts.append(end)
            end += -(-max(size, 1) // _LINE) * _LINE
        words = list(data.words)
        for word, message in data.checks.items():
            if message not in self.violations:
                self.violations.append(message)
            words[word] = VIOLATED + self.violations.index(message)
        relocations, patches, results = [], [], []
        for word, place in sorted(data.places.items()):
            if isinstance(place.owner, tuple) and place.owner[0] == "argument":
                patches.append(f"{{{word}, {place.owner[1]}, {place.offset}}}")
                continue
            region, words[word] = self._place(place, traced.bind, starts)
            relocations.append(f"{{{word}, {region}}}")
        for t, place in zip(data.outputs, data.results, strict=True):
            nbytes = int(np.prod(t.shape, dtype=np.int64)) * t.dtype.itemsize
            if isinstance(place.owner, tuple) and place.owner[0] == "argument":
                results.append(f"{{{-1 - place.owner[1]}, {place.offset}, {nbytes}}}")
            else:
                region, offset = self._place(place, traced.bind, starts)
                results.append(f"{{{region}, {offset}, {nbytes}}}")
        if traced.role not in (exported.PREDICT, exported.CALL):
            for t in data.outputs if traced.role in (exported.TRAIN, exported.GATHER) else data.outputs[:1]:
                if t.dtype.name not in ("f32", "f64"):
                    raise DtypeError(
                        f"a loss has type {t.dtype.name}; the losses of a library must be float32 or float64"
                    )
        numbers = [f"UINT64_C({w})" if w >= 1 << 31 else str(w) for w in words]
        fields = {
            "words": self._array("uint64_t", f"words_{n}", numbers),
            "size": len(words),
            "steps": data.steps,
            "relocations": self._array("struct relocation", f"relocations_{n}", relocations),
            "relocated": len(relocations),
            "patches": self._array("struct patch", f"patches_{n}", patches),
            "patched": len(patches),
            "results": self._array("struct result", f"results_{n}", results),
            "outputs": len(results),
            "scratch": data.scratch,
            "stride": data.stride,
            "groups": self._array("int32_t", f"groups_{n}", [str(g) for g in traced.groups]),
            "updated": len(traced.groups),
            "samples": traced.samples,
        }
        return initializer(fields), end

    def _library(self, results: int, pool_bytes: int, programs: int) -> str:
        """Add the tables of tensors and settings. Return the initializer of the struct that has all tables."""
        s, name = self.subject, self.name
        headers, tensors = entries(s), []
        for t in s.memories.tensors:
            e = headers.get(t.name)
            text = f"the file lacks the tensor {t.name}, of {t.array.dtype}{list(t.array.shape)}"
            strings = ["NULL"] * 4 if e is None else [quote(x) for x in (t.name, e.head, e.place, text)]
            tensors.append(f"{{{', '.join(strings)}, {t.array.nbytes}}}")
        self._array("struct tensor", "tensors", tensors)
        self._array(
            "struct feature",
            "features",
            [
                f"{{{quote(f'this processor lacks {f.name}, which the library is compiled for')}, "
                f"{f.leaf}, {f.subleaf}, {f.place}, {f.bit}}}"
                for f in self.processor.features
            ],
        )
        self._array("char *const", "violations", [quote(v) for v in self.violations])
        numbers = [
            f"{{{kind}, {which}, {len(REGIONS) + self._tensor[n]}}}" for n, (kind, which) in s.memories.numbers.items()
        ]
        self._array("struct number", "numbers", numbers)
        settings = []
        for n, setting in enumerate(s.training.settings if s.training else ()):
            table = "NULL"
            if setting.table:
                values = [x.hex().replace("inf", "INFINITY") for x in setting.table]
                table = self._array("double", f"table_{n}", values)
            settings.append(f"{{{quote(setting.name)}, {table}, {len(setting.table)}}}")
        self._array("struct setting", "settings", settings)
        counters = (traces.STEPS, traces.GATHERED, traces.SAMPLES, traces.UPDATES, traces.VALUES, traces.REPORTS)
        fields = {
            "features": "features", "featured": len(self.processor.features),
            "violations": "violations", "checks": len(self.violations),
            "tensors": "tensors", "count": len(tensors), "header": len(file_header(s)),
            "programs": "programs", "kinds": programs,
            "functions": f"{name}_functions", "constants": f"{name}_constants", "result_bytes": results,
            "pool": pool_bytes, "threads": s.threads, "numbers": "numbers", "numbered": len(numbers),
            "settings": "settings", "set": len(settings), "accumulate": s.training.accumulate if s.training else 1,
            "reported": len(s.training.reports) if s.training else 0,
            **{c.rpartition("/")[2]: self._tensor.get(c, 0) for c in counters},
            "run": f"{name}_run", "worker": f"{name}_worker", "stop": f"{name}_stop",
        }  # fmt: skip
        return initializer(fields)


def quote(text: str) -> str:
    """Quote a text as a C string literal."""
    out = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{out}"'
