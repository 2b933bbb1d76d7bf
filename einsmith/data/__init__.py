"""Provide data sets, batches and augmentation."""

from einsmith.data import augment
from einsmith.data.batching import Batches, batches, columns
from einsmith.data.cifar_files import cifar10
from einsmith.data.documents import Document, documents, hold_out
from einsmith.data.fashion_files import fashion_mnist
from einsmith.data.images import ImageFolder, image_folder
from einsmith.data.mnist_files import idx_folder, mnist, mnist_rows
from einsmith.data.packing import TokenRows, rows
from einsmith.data.stream import Stream, stream, windows
from einsmith.data.text_files import text, text_folder
from einsmith.data.tokenizer import Tokenizer
from einsmith.data.vocabulary import Vocabulary

__all__ = [
    "Batches", "Document", "ImageFolder", "Stream", "TokenRows", "Tokenizer", "Vocabulary", "augment", "batches",
    "cifar10", "columns", "documents", "fashion_mnist", "hold_out", "idx_folder", "image_folder", "mnist",
    "mnist_rows", "rows", "stream", "text", "text_folder", "windows",
]  # fmt: skip
