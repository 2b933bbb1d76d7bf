"""Hold the package to the ceilings of `budgets.toml`: code lines, long files, functions, classes, and empty names.

    python -m tests.lint [--lower] [--names PACKAGE]

--lower: lower the ceilings to what is there, instead of checking.
--names PACKAGE: print where a package, such as `kernels`, has names with a word that says nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.lint import budget
from tests.lint.measure import empty_names, measure, part_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "einsmith"
BUDGETS = ROOT / "budgets.toml"


def main() -> int:
    """Check or lower the ceilings; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.lint")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to what is there")
    parser.add_argument("--names", metavar="PACKAGE", help="print where a package has names that say nothing")
    options = parser.parse_args()
    if options.names:
        for file, line, name in empty_names(PACKAGE):
            if part_of(file) == options.names:
                print(f"einsmith/{file}:{line}: {name}")
        return 0
    sizes = measure(PACKAGE)
    if options.lower:
        BUDGETS.write_text(budget.lower(BUDGETS.read_text(), sizes))
        return 0
    allowed = budget.read(BUDGETS)
    excess, slack = list(budget.find_excess(sizes, allowed)), list(budget.find_slack(sizes, allowed))
    if excess:
        print("More than budgets.toml allows; its head says how a ceiling may be raised:", *excess, sep="\n  ")
    if slack:
        print("Ceilings to lower with `python -m tests.lint --lower`:", *slack, sep="\n  ")
    return int(bool(excess or slack))


if __name__ == "__main__":
    sys.exit(main())
