"""A network is exported as a library, and trains from C as it does from Python, bit for bit.

    python examples/train_from_c.py [lenet5 or milstm] [folder]

Writes the library, and batches for it, into the folder; says how to compile examples/train_from_c.c with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import einsmith as es

BATCH, BATCHES = 16, 10
HERE = Path(__file__).parent


def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [count, 1, 28, 28] of ten classes, each a pattern under noise, and their labels."""
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((10, 1, 28, 28))
    labels = rng.integers(0, 10, count)
    return (patterns[labels] + rng.standard_normal((count, 1, 28, 28))).astype(np.float32), labels


def main(name: str = "lenet5", folder: str = "exported", steps: int = 100) -> list[float]:
    es.manual_seed(0)
    step = es.TrainStep(es.models.get(name), es.functional.cross_entropy, es.optim.Adam(lr=1e-3))
    images, labels = samples(BATCH * BATCHES)
    batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(images), BATCH)]

    place = es.export(step, folder, *batches[0], name="network", overwrite=True)
    with open(place / "batches", "wb") as file:
        for x, y in batches:
            file.write(x.tobytes() + y.tobytes())
    sizes = {p.name: p.stat().st_size for p in sorted(place.iterdir())}
    print(f"{name} in {place}:", ", ".join(f"{n} {size / 1024:.0f} KiB" for n, size in sizes.items()))
    print(f"cc -O2 -I{place} -o {place}/train {HERE}/train_from_c.c {place}/network.o -lpthread -lm")
    print(f"{place}/train {place}/weights.safetensors {place}/batches {steps} {place}/trained.safetensors")

    library = es.load_library(place)  # the same library in this process: NumPy and ctypes are all it needs
    losses = [step(*batches[n % BATCHES]) for n in range(steps)]
    same = [library.step(*batches[n % BATCHES]) for n in range(steps)] == losses
    print(f"loss {losses[0]:.4f}, after {steps} steps {losses[-1]:.4f};", "the library's are the same" if same else
          "THE LIBRARY'S ARE OTHERS")  # fmt: skip
    return losses


if __name__ == "__main__":
    main(*sys.argv[1:3])
