"""Read images from folders, one folder per class, and decode them when a batch is made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from einsmith.base import files, locks
from einsmith.base.arguments import Count, check_arguments
from einsmith.base.errors import ArgumentError, DataError
from einsmith.base.threads import submit

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def _pillow() -> Any:
    try:
        with locks.IMPORTING:
            from PIL import Image
    except ImportError as e:
        raise DataError("images are decoded by Pillow, which is not installed: pip install pillow") from e
    return Image


def decode(file: Any, name: str, mode: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the pixels of an image, uint8 [height, width, 3] for the mode "RGB", [height, width] for "L".

    size: (height, width); the largest centred crop with this aspect ratio is scaled to it. Raises DataError, which
    contains `name`."""
    image_module = _pillow()
    try:
        with ExitStack() as stack:
            source = stack.enter_context(files.reading(file)) if isinstance(file, os.PathLike) else file
            opened = stack.enter_context(image_module.open(source))
            image = _eight_bits(opened).convert(mode)
            if size is not None and (image.height, image.width) != size:
                height, width = size
                scale = min(image.height / height, image.width / width)
                h, w = scale * height, scale * width
                top, left = (image.height - h) / 2, (image.width - w) / 2
                image = image.resize((width, height), image_module.BILINEAR, (left, top, left + w, top + h))
            return np.asarray(image)
    except Exception as e:  # Pillow's decoders raise errors of many kinds for damaged files
        raise DataError(f"{name} cannot be decoded: {e or type(e).__name__}") from e


def _eight_bits(image: Any) -> Any:
    """Reduce an image of 16 bits per channel to the upper eight, as Pillow would clip at 255; return others unchanged.

    Raises DataError for 32 bits, as no format defines their range."""
    if image.mode.startswith("I;16"):
        return _pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(
            "its pixels have 32 bits, a format whose value for white is not defined; convert it to 8 or 16 bits"
        )
    return image


class Images:
    """Image files as one lazy array, decoded when it is indexed: images[indices] is float32 [n, channels, height,
    width] in 0..1."""

    def __init__(self, paths: Sequence[Path], size: tuple[int, int], channels: int = 3):
        self.paths, self.size, self.channels = list(paths), size, channels

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, path: Path) -> np.ndarray:
        """Decode one image; return uint8 [channels, height, width]. Raises DataError."""
        pixels = decode(path, str(path), "RGB" if self.channels == 3 else "L", self.size)
        return pixels.transpose(2, 0, 1) if self.channels == 3 else pixels[None]

    def __getitem__(self, chosen: Any) -> np.ndarray:
        paths = [self.paths[i] for i in np.arange(len(self.paths))[chosen]]
        out = np.empty((len(paths), self.channels, *self.size), np.float32)
        for k, path in enumerate(paths):
            np.multiply(self.read(path), np.float32(1 / 255), out=out[k])
        return out


class ImageFolder:
    """The result of `image_folder`. Attributes: `x` (Images), `y` (int64 [N]), `classes` (names in the order of their
    numbers), `skipped` (path and reason of each image that was left out)."""

    def __init__(self, x: Images, y: np.ndarray, classes: list[str], skipped: list[tuple[Path, str]]):
        self.x, self.y, self.classes, self.skipped = x, y, classes, skipped

    def __len__(self) -> int:
        return len(self.y)

    def __iter__(self) -> Any:
        return iter((self.x, self.y))

    def __repr__(self) -> str:
        left = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"ImageFolder({len(self)} images of {len(self.classes)} classes{left})"


@check_arguments
def image_folder(
    folder: str | os.PathLike,
    size: int | tuple[int, int],
    *,
    channels: int = 3,
    errors: str = "raise",
    threads: Count = 4,
) -> ImageFolder:
    """Read a folder that has one folder of images for each class, as (x, y) for `es.data.batches`.

    size: (height, width) to which a centred crop of every image is scaled, or one number for both; channels: 3 or 1.
    Classes are numbered in the order of their names. Images are decoded when a batch is made; an image that does not
    decode raises DataError, which names it. errors="skip" decodes every image once now, in `threads` threads, and
    leaves out images that do not decode; `skipped` names them. Files without an image's extension (`EXTENSIONS`) are
    left out. Needs Pillow. Raises DataError where there is no folder or no image, and for a class without images.
    """
    root = Path(folder)
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ArgumentError(f"size={size!r} must be positive")
    if channels not in (1, 3):
        raise ArgumentError(f"channels={channels!r} is neither 1 nor 3")
    if errors not in ("raise", "skip"):
        raise ArgumentError(f"errors={errors!r} is neither 'raise' nor 'skip'")
    if why := files.why_not_folder(root):
        raise DataError(f"{root} {why}; pass one that has a folder of images for each class")
    _pillow()
    classes = sorted(p.name for p in root.iterdir() if files.is_folder(p) and not p.name.startswith("."))
    unusable = [f"{root / name} {why}" for name in classes if (why := files.why_not_folder(root / name))]
    if unusable:
        raise DataError(f"{unusable[0]}; change its mode, or remove it")
    samples = [
        (path, n)
        for n, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in EXTENSIONS and files.is_file(path)
    ]
    empty = [name for n, name in enumerate(classes) if n not in {k for _, k in samples}]
    if samples and empty:
        raise DataError(
            f"{root}: every folder is a class, but {', '.join(empty)} has no image (known extensions: "
            f"{', '.join(EXTENSIONS)}); add images, or remove the folder"
        )
    x = Images([path for path, _ in samples], (height, width), channels)
    skipped: list[tuple[Path, str]] = []
    if errors == "skip":

        def fault(path: Path) -> str | None:
            try:
                x.read(path)
            except DataError as e:
                return str(e)
            return None

        with ThreadPoolExecutor(threads) as pool:
            faults = [future.result() for future in [submit(pool, fault, path) for path in x.paths]]
        skipped = [(path, why) for path, why in zip(x.paths, faults, strict=True) if why is not None]
        samples = [item for item, why in zip(samples, faults, strict=True) if why is None]
        x = Images([path for path, _ in samples], (height, width), channels)
    if not samples:
        left = f" that can be decoded ({skipped[0][1]})" if skipped else ""
        raise DataError(f"{root} has no image{left} in a folder of a class; known extensions: {', '.join(EXTENSIONS)}")
    return ImageFolder(x, np.array([n for _, n in samples], np.int64), classes, skipped)
