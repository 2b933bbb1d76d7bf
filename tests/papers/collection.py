"""Collect the operators of all papers: each module of this folder enters its own into the list."""

from __future__ import annotations

from tests.papers import (  # noqa: F401
    activations,
    attention_linear,
    attention_scores,
    attention_vision,
    capsules,
    convolutions_images,
    convolutions_pooling,
    embeddings,
    graphs,
    learning,
    losses,
    norms,
    recurrent_cells,
    recurrent_scans,
    sciences,
)
from tests.papers.operator import OPERATORS

__all__ = ["OPERATORS"]
