"""Data sets and batches."""

from einsmith.data.batching import Batches, batches
from einsmith.data.mnist_files import idx_folder, mnist

__all__ = ["Batches", "batches", "idx_folder", "mnist"]
