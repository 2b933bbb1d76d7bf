"""Experiments of a paper."""

from __future__ import annotations

from benchmarks.paper.experiment import Paper

PAPER = Paper("autoconfig", "autoconfig", "", {}, [])
