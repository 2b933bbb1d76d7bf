"""Operators, forward and gradients, Einsmith and its peers side by side: python -m benchmarks.operators [name ...]"""

from __future__ import annotations

import sys

from benchmarks.problems import OPERATORS
from benchmarks.report import run

if __name__ == "__main__":
    sys.exit(run("Times operators, forward and all gradients, in every peer.", OPERATORS))
