"""Define the options that several commands have."""

from __future__ import annotations

import click

from einsmith.cli.option_types import ByteSize, ThreadCount

BATCH = click.IntRange(1, 1 << 31)
_LIMIT = "Memory limit of a step, such as 800MB; results are recomputed to meet it.  [default: no limit]"
_STORED = (
    "Largest result between two reductions that is stored although it need not be, as that is faster.  [default: 32MiB]"
)
threads = click.option("--threads", type=ThreadCount(), help="Number of threads.  [default: all physical cores]")
memory_limit = click.option("--memory-limit", type=ByteSize(), help=_LIMIT)
max_stored = click.option("--max-stored", type=ByteSize(0), help=_STORED)
