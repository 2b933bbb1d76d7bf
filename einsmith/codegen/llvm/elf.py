"""Edit object files of the ELF format before they are loaded."""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"
"""First bytes of ELF files with 64-bit words, least significant byte first."""
_SECTIONS, _COUNTS = 40, 58
"""Offsets in a file's header: of the section headers' place, and of their size and number."""
_FLAGS = 8
"""Offset of the flags in a section's header."""
_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4


def make_constants_executable(code: bytes) -> bytes:
    """Return the object with its constants declared executable, as its code is; other formats are returned unchanged.

    A linker gives each kind of access pages of its own. With only one kind, an object is one memory map, and the
    system joins the maps of adjacent objects; a process may have a limited number (vm.max_map_count).
    """
    if not code.startswith(_MAGIC):
        return code
    out = bytearray(code)
    (first,) = struct.unpack_from("<Q", out, _SECTIONS)
    size, count = struct.unpack_from("<HH", out, _COUNTS)
    for at in range(first + _FLAGS, first + _FLAGS + size * count, size):
        (flags,) = struct.unpack_from("<Q", out, at)
        if flags & (_ALLOCATE | _WRITE) == _ALLOCATE:
            struct.pack_into("<Q", out, at, flags | _EXECUTE)
    return bytes(out)
