"""Define the types of the command line's options."""

from __future__ import annotations

from typing import Any

import click

from einsmith.base.errors import ArgumentError


class ByteSize(click.ParamType):
    """Parameter type of a number of bytes, at least `least`, as 800MB."""

    name = "SIZE"

    def __init__(self, least: int = 1):
        self.least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from einsmith.base.sizes import size_of

        try:
            return size_of(value, "size", self.least)
        except ArgumentError as e:
            self.fail(str(e), param, ctx)


class ThreadCount(click.IntRange):
    """Parameter type of a number of threads."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from einsmith.cost.facts import MAX_THREADS

        count: int = super().convert(value, param, ctx)
        if count > MAX_THREADS:
            self.fail(f"{count} is not in the range 1<=x<={MAX_THREADS}.", param, ctx)
        return count
