"""Read which symbols an object file refers to without defining them: ELF, Mach-O and COFF, of 64 bits."""

from __future__ import annotations

import struct
from collections.abc import Iterator


def undefined(code: bytes) -> set[str]:
    """Return the names of an object's undefined symbols, as its format spells them."""
    if code.startswith(b"\x7fELF\x02\x01"):
        return set(_elf(code))
    return set(_mach_o(code) if code.startswith(b"\xcf\xfa\xed\xfe") else _coff(code))


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


def _elf(code: bytes) -> Iterator[str]:
    (first,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, first + n * size) for n in range(count)]
    (table,) = (s for s in sections if s[1] == 2)  # SHT_SYMTAB
    names = sections[table[6]][4]
    for at in range(table[4] + 24, table[4] + table[5], 24):  # the first symbol is none
        name, _, _, section = struct.unpack_from("<IBBH", code, at)
        if section == 0:
            yield _text(code, names + name)


def _mach_o(code: bytes) -> Iterator[str]:
    (count,) = struct.unpack_from("<I", code, 16)
    at = 32
    for _ in range(count):
        kind, size = struct.unpack_from("<II", code, at)
        if kind == 2:  # LC_SYMTAB
            symbols, number, names, _ = struct.unpack_from("<IIII", code, at + 8)
            for n in range(number):
                name, sort = struct.unpack_from("<IB", code, symbols + 16 * n)
                if sort & 0x0F == 1:  # external, in no section
                    yield _text(code, names + name)
        at += size


def _coff(code: bytes) -> Iterator[str]:
    symbols, count = struct.unpack_from("<II", code, 8)
    names, n = symbols + 18 * count, 0
    while n < count:
        at = symbols + 18 * n
        short, place, value, section, _, kind, more = struct.unpack_from("<IIIhHBB", code, at)
        if section == 0 and value == 0 and kind == 2:  # external, in no section
            yield _text(code, names + place) if short == 0 else code[at : at + 8].rstrip(b"\0").decode()
        n += 1 + more
