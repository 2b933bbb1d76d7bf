"""Write and read step.json, the description of a saved training step, and check every entry when it is read."""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from einsmith.base import files
from einsmith.base.errors import SaveError
from einsmith.base.numerics import STORED
from einsmith.ops.table import OPERATORS
from einsmith.training.settings import MODES, UpdateSettings
from einsmith.training.state import INITIAL_SCALE
from einsmith.tuning.programs.kernel_search import FIRST_CALL, GRAPH

FORMAT = "einsmith-step"
MAX_BYTES = 1 << 28
"""Most bytes of a description that are read: a million epochs' results; a folder may come from anywhere."""
VERSION = 10
"""Version of the format in which saves are written."""
SIGNED = 6
"""First version whose step.json holds its own checksum and the checksums of all files of the save."""
FILES = WEIGHTS, STATE, META, PLAN = "weights.safetensors", "state.safetensors", "step.json", "plan.txt"
LOSSES = tuple(
    name for name, row in sorted(OPERATORS.items()) if row.call.__module__.startswith("einsmith.ops.losses.")
)
"""Names of the losses of `functional`, which are restored by name."""


def _integer(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _count(x: Any) -> bool:
    return _integer(x) and 0 <= x < 2**53  # counts that the step's float64 represents exactly


def _number(x: Any) -> bool:
    return isinstance(x, float) or (_integer(x) and abs(x) < 2**53)


def _finite(x: Any) -> bool:
    return _number(x) and math.isfinite(x)


def _dict_check(values: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for a dictionary all of whose values pass `values`."""
    return lambda x: isinstance(x, dict) and all(map(values, x.values()))


def _model(x: Any) -> bool:
    return x is None or (
        _has(x, "name", "arguments") and isinstance(x["name"], str) and _dict_check(_any)(x["arguments"])
    )


def _optimizer(x: Any) -> bool:
    if x is None:
        return True
    if not (isinstance(x, dict) and isinstance(x.get("name"), str)):
        return False
    if x["name"] == "Groups":
        return (
            _has(x, "name", "rules", "parameters")
            and _dict_check(_rule)(x["rules"])
            and _dict_check(_names)(x["parameters"])
        )
    return _rule(x)


def _names(x: Any) -> bool:
    return isinstance(x, list) and all(isinstance(n, str) for n in x)


def _rule(x: Any) -> bool:
    if not (isinstance(x, dict) and isinstance(x.get("name"), str)):
        return False
    if x["name"] == "Rule":
        numbers = _dict_check(_hyper)
        return (
            _has(x, "name", "text", "init", "arguments")
            and isinstance(x["text"], str)
            and all(numbers(x[k]) for k in ("init", "arguments"))
        )
    return (
        _has(x, "name", "arguments", "hyper") and _dict_check(_hyper)(x["hyper"]) and _dict_check(_any)(x["arguments"])
    )


def _hyper(x: Any) -> bool:
    """Return whether x is a number or a schedule of `optim.lr_scheduler`."""
    return _number(x) or (isinstance(x, dict) and isinstance(x.get("schedule"), str))


def _hexadecimal(x: Any) -> bool:
    return isinstance(x, str) and re.fullmatch("([0-9a-f]{2})*", x) is not None


def _text(x: Any) -> bool:
    return isinstance(x, str)


def _plain(name: str) -> bool:
    """Return whether a name is that of a file directly in the folder, without path separators."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _any(x: Any) -> bool:
    return True


def _has(x: Any, *keys: str) -> bool:
    return isinstance(x, dict) and set(x) == set(keys)


ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_model, "null, or a name and arguments"),
    "frozen": (_names, "a list of parameters' names"),
    "loss": (lambda x: x is None or x in LOSSES, f"null or one of {', '.join(LOSSES)}"),
    "optimizer": (_optimizer, "null, or a description of an update rule"),
    "steps": (_count, "a whole number"),
    "updates": (lambda x: x is None or _dict_check(_count)(x), "null, or whole numbers by name"),
    "epoch": (_count, "a whole number"),
    "position": (_count, "a whole number"),
    "epoch_loss": (_finite, "a finite number"),
    "epoch_samples": (_count, "a whole number"),
    "epoch_losses": (_dict_check(_finite), "finite numbers by name"),
    "history": (lambda x: isinstance(x, list) and all(map(_dict_check(_any), x)), "a list of the results of epochs"),
    "settings": (lambda x: _has(x, *asdict(UpdateSettings())), "the step's settings"),
    "gathered": (_count, "a whole number"),
    "gathered_samples": (_count, "a whole number"),
    "loader_state": (lambda x: x is None or _hexadecimal(x), "null or bytes in hexadecimal digits"),
    "seed": (_integer, "an integer"),
    "winograd": (lambda x: isinstance(x, bool), "true or false"),
    "separate_exponentials": (lambda x: isinstance(x, bool), "true or false"),
    "precision": (
        lambda x: x in STORED if isinstance(x, str) else _dict_check(lambda y: y in STORED)(x),
        f"one of {', '.join(STORED)}, or these by layers' names",
    ),
    "loss_scale": (
        lambda x: isinstance(x, list) and len(x) == 2 and _finite(x[0]) and x[0] >= 1 and _count(x[1]),
        "a scale of at least 1, and a whole number",
    ),
    "mode": (lambda x: x in MODES, f"one of {', '.join(MODES)}"),
    "tune": (lambda x: x in (GRAPH, FIRST_CALL) or (_finite(x) and x >= 0), f"seconds, {GRAPH} or {FIRST_CALL}"),
    "deterministic": (lambda x: isinstance(x, bool), "true or false"),
    "holds_weights": (lambda x: isinstance(x, bool), "true or false"),
    "files": (lambda x: _dict_check(_text)(x) and all(map(_plain, x)), "the files' checksums"),
}


SINCE: dict[int, dict[str, Any]] = {
    2: {
        "epoch_losses": {},
        "history": [],
        "settings": asdict(UpdateSettings()),
        "gathered": 0,
        "gathered_samples": 0,
        "loader_state": None,
    },
    3: {"updates": None},
    4: {"mode": "static", "tune": 0.0},
    6: {"deterministic": False},
    7: {"precision": "fp32", "loss_scale": [INITIAL_SCALE, 0]},
    8: {"separate_exponentials": False},
    9: {"holds_weights": True},
}
"""By version, the values of entries that were added later and that its saves lack."""


def write(folder: Path, entries: dict[str, Any]) -> None:
    """Write step.json with the checksums of all other files that are in the folder, and of itself."""
    meta = {"format": FORMAT, "version": VERSION} | entries
    meta["files"] = {path.name: digest(path) for path in sorted(folder.iterdir())}
    files.write(folder / META, sign(meta))


_LAST = re.compile(rb'(.*),\n "checksum": "([0-9a-f]{64})"\n}\n', re.DOTALL)
"""Pattern of step.json: the text that the checksum covers, and the checksum, which is the last entry."""


def sign(entries: dict[str, Any]) -> str:
    """Return the text of step.json; its last entry is the SHA-256 checksum of all bytes preceding it."""
    text = json.dumps({n: v for n, v in entries.items() if n != "checksum"}, indent=1).removesuffix("\n}")
    return f'{text},\n "checksum": "{hashlib.sha256(text.encode()).hexdigest()}"\n}}\n'


def _verify(folder: Path, text: bytes, meta: dict[str, Any]) -> None:
    """Raise SaveError where step.json is not as it was written; warn where its version has no checksum of itself."""
    if meta["version"] < SIGNED and "checksum" not in meta:
        warnings.warn(
            f"{folder}: {META} of version {meta['version']} has no checksum, so changes to it are not noticed; "
            "es.save(step, folder) saves it again with one",
            stacklevel=5,  # the caller of es.load
        )
        return
    match = _LAST.fullmatch(text)
    if match is None or hashlib.sha256(match[1]).hexdigest().encode() != match[2]:
        raise SaveError(f"{folder}: {META} was changed; its checksum differs from the saved one")


def read(folder: Path) -> dict[str, Any]:
    """Return the entries of a folder's step.json.

    Raises SaveError, with folder and entry, where an entry is missing or invalid, and where another file of the folder
    does not match its saved checksum.
    """
    if why := files.why_not_folder(folder):
        raise SaveError(f"{folder} {why}; pass what es.save wrote")
    try:
        text = files.read_bytes(folder / META, MAX_BYTES)
        meta = json.loads(text.decode("utf-8"))
    except OSError as e:
        raise SaveError(f"{folder} is not a saved step: {_unreadable(META, e)}") from e
    except (ValueError, RecursionError) as e:
        raise SaveError(f"{folder} is not a saved step: {META} is damaged") from e
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise SaveError(f"{folder} is not a saved step: {META} has another format")
    if meta.get("version") not in range(min(SINCE), VERSION + 1) or not _integer(meta["version"]):
        raise SaveError(
            f"{folder} was saved in version {meta.get('version')!r}; this Einsmith reads {min(SINCE)} to {VERSION}"
        )
    _verify(folder, text, meta)
    for version, entries in SINCE.items():
        if meta["version"] <= version:
            meta = entries | meta
    missing = set(ENTRIES) - set(meta)
    if missing:
        raise SaveError(f"{folder}: {META} lacks {', '.join(sorted(missing))}")
    for name, (allowed, what) in ENTRIES.items():
        if not allowed(meta[name]):
            raise SaveError(f"{folder}: {META} has {name!r}: {_shorten(meta[name])}, which is not {what}")
    lacking = {WEIGHTS, STATE, *((PLAN,) if meta["version"] >= SIGNED else ())} - set(meta["files"])
    if lacking:
        raise SaveError(f"{folder}: {META} lacks the checksums of {', '.join(sorted(lacking))}")
    for name, saved in meta["files"].items():
        try:
            checksum = digest(folder / name)
        except OSError as e:
            raise SaveError(f"{folder}: {_unreadable(name, e)}") from e
        if checksum != saved:
            raise SaveError(f"{folder}: {name} is truncated or was changed; its checksum differs from the saved one")
    return meta


def _unreadable(name: str, e: OSError) -> str:
    """Return why a file of a save cannot be read, in words."""
    return f"{name} is missing" if isinstance(e, FileNotFoundError) else f"{name} cannot be read: {e.strerror or e}"


def is_saved_step(folder: Path) -> bool:
    """Return whether a folder holds a saved step, whole or not."""
    return has_format(folder / META, FORMAT)


def has_format(file: Path, name: str) -> bool:
    """Return whether a JSON file's `format` entry is `name`."""
    try:
        return json.loads(files.read_bytes(file, MAX_BYTES)).get("format") == name
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def digest(path: Path) -> str:
    """Return the checksum of a file."""
    with files.reading(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def loss_name(loss: Callable) -> str | None:
    """Return the name by which a loss is restored, None for the user's own."""
    return next((n for n in LOSSES if OPERATORS[n].call is loss), None)


def _shorten(x: Any) -> str:
    try:
        text = json.dumps(x)
    except ValueError:  # an integer of too many digits to print
        text = "a number too long to show"
    return text if len(text) <= 60 else text[:57] + "..."
