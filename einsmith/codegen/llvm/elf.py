"""Object files of the ELF format, as far as loading them needs it."""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"
"""Of files with 64-bit words, the least significant byte first."""
_SECTIONS, _COUNTS = 40, 58
"""Where a file's header tells the place of the section headers; their size and number."""
_FLAGS = 8
"""Where a section's header holds its flags."""
_WRITE, _ALLOCATE, _EXECUTE = 1, 2, 4


def in_one_segment(code: bytes) -> bytes:
    """The object with its constants declared executable, as its code is; other formats as they are.

    A linker gives each kind of access pages of its own. Where there is but one kind, an object is one memory map, and
    the system joins those of objects that lie side by side; a process has only so many (vm.max_map_count).
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
