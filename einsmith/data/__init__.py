"""Data sets and batches."""

from einsmith.data.batching import Batches, batches
from einsmith.data.mnist_files import idx_folder, mnist, mnist_rows
from einsmith.data.stream import Stream, stream
from einsmith.data.text_files import text, text_folder
from einsmith.data.vocabulary import Vocabulary

__all__ = [
    "Batches", "Stream", "Vocabulary", "batches", "idx_folder", "mnist", "mnist_rows", "stream", "text", "text_folder",
]  # fmt: skip
