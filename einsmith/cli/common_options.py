"""Define the options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

from einsmith.base.precisions import PRECISIONS
from einsmith.cli.option_types import ByteSize, ThreadCount

BATCH = click.IntRange(1, 1 << 31)
COUNT = click.IntRange(min=1)
SEED = click.IntRange(min=0)
POSITIVE = click.FloatRange(min=0, min_open=True)
PATH = click.Path(path_type=Path)
_PRECISION = "fp32, or products in tf32, or activations of 16 bits: bf16, fp16.  [default: fp32]"
_SHAPE = "Shape of a formula's input; once per input."
_SET = "Set a parameter of a formula, or an argument of a MODEL."
_LIMIT = "Memory limit of a step, such as 800MB; results are recomputed to meet it.  [default: no limit]"
_STORED = (
    "Largest result between two reductions that is stored although it need not be, as that is faster.  [default: 32MiB]"
)
threads = click.option("--threads", type=ThreadCount(), help="Number of threads.  [default: all physical cores]")
memory_limit = click.option("--memory-limit", type=ByteSize(), help=_LIMIT)
max_stored = click.option("--max-stored", type=ByteSize(0), help=_STORED)
precision = click.option("--precision", type=click.Choice(PRECISIONS), help=_PRECISION)
shapes = click.option("--shape", "shapes", multiple=True, metavar="A=64,128", help=_SHAPE)
settings = click.option("--set", "settings", multiple=True, metavar="stride=2", help=_SET)
