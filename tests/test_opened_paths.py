"""Every path is opened in base/files.py, which knows what a planted link, a FIFO or a device would do, and is looked at
there, where a folder that cannot be searched is no error."""

from __future__ import annotations

import ast
import re

import pytest

from tests.sources import trees

CALLS = {
    "open", "io.open", "os.open", "os.replace", "os.rename", "os.link", "os.symlink", "np.load", "np.save", "np.savez",
    "np.savez_compressed", "np.fromfile", "np.memmap", "np.loadtxt", "np.savetxt", "np.genfromtxt", "gzip.open",
    "zipfile.ZipFile", "sqlite3.connect", "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree",
    "shutil.move", "mmap.mmap", "os.listdir", "os.scandir",
}  # fmt: skip
"""Functions that open a path, or put a file somewhere."""
METHODS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "rename", "hardlink_to", "symlink_to",
    "tofile", "is_dir", "is_file", "exists", "is_symlink", "is_fifo", "samefile", "save_file", "load_file", "savefig",
}  # fmt: skip
"""Methods of paths that do so, or raise where a folder above cannot be searched."""
OWN = r"files\..*|self\.open|idx\.read_bytes|onnx_files\.is_file|os\.path\.samefile|folder\.open|tarfile\.open"
"""Functions of the package, and an archive in memory, that have such names."""
ALLOWED = {
    "base/folders.py": {
        "rename": "whole folders, under the lock of their place",
        "shutil.copy2": "a user's own files, links as links, into a new folder",
        "shutil.copytree": "a user's own folders, links as links, into a new folder",
    },
    "base/npz.py": {"np.load": "of an open plain file", "np.savez": "into memory"},
    "base/servers.py": {"os.open": "/dev/null"},
    "base/forks.py": {"open": "/proc"},
    "base/system/memory.py": {"write_text": "/proc"},
    "base/system/sources.py": {"read_text": "/proc and /sys"},
    "models/tensor_files.py": {"save_file": "of safetensors, which writes by path, into a new folder"},
    "checking/guarded.py": {"mmap.mmap": "memory of no file"},
    "cli/curve.py": {"savefig": "into memory"},
    "cli/main.py": {"os.open": "/dev/null"},
    "cli/onnx_files.py": {"is_file": "its own"},
    "cli/search.py": {"savefig": "into memory"},
    "data/images.py": {"open": "of an image library, an open plain file"},
    "export/library.py": {"read_bytes": "is copied beside an export, without the package; it looks for a plain file"},
    "training/checkpoint.py": {
        "save_file": "of safetensors, which writes by path, into a new folder",
        "load_file": "of safetensors, which reads by path, after the file's checksum was read",
    },
    "tuning/kernels/database.py": {"sqlite3.connect": "SQLite opens by path; folder and files are checked before"},
}
"""Calls outside of base/files.py, by file, with what they open."""


def opened(tree: ast.Module) -> set[str]:
    """What a file calls to open paths: "module.function" or the name of a method."""
    out = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in CALLS:
            out.add(name)
        elif isinstance(node.func, ast.Attribute):
            if node.func.attr in METHODS and not re.fullmatch(OWN, name):
                out.add(node.func.attr)
        elif name in METHODS:
            out.add(name)
    return out


def test_paths_are_opened_in_one_place() -> None:
    calls = {path: opened(tree) for path, tree in trees().items()}
    del calls["base/files.py"]
    wrong = {name: found - set(ALLOWED.get(name, {})) for name, found in calls.items()}
    assert not {name: found for name, found in wrong.items() if found}


def test_what_is_allowed_is_needed() -> None:
    stale = {f: set(names) - opened(trees()[f]) for f, names in ALLOWED.items()}
    assert not {f: names for f, names in stale.items() if names}


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("with open(x) as f: pass", "open"),
        ("y = Path(x).read_bytes()", "read_bytes"),
        ("np.load(x)", "np.load"),
        ("path.is_dir()", "is_dir"),
        ("os.replace(a, b)", "os.replace"),
    ],
)
def test_a_call_is_seen(text: str, call: str) -> None:
    assert opened(ast.parse(text)) == {call}
