"""Training steps, Einsmith and its peers side by side: python -m benchmarks.training [network ...]"""

from __future__ import annotations

import sys

from benchmarks.problems import TRAINING
from benchmarks.report import run

if __name__ == "__main__":
    sys.exit(run("Times one training step (SGD) of each network in every peer.", TRAINING))
