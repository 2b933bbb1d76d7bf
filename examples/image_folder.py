"""CIFAR-10 from a folder of pictures: augmentation in background threads, weight decay not on biases, a warm-up, the
average of the weights, and a run that can be stopped at any time and goes on when it is started again.

    python examples/image_folder.py [folder with train/CLASS/*.png and test/CLASS/*.png [epochs]]

Without a folder, CIFAR-10 is fetched and written as one. Needs Pillow.
"""

from __future__ import annotations

import sys
from pathlib import Path

import einsmith as es


def write_cifar10(folder: Path) -> None:
    """Writes the pictures, the folder whole or not at all."""
    from PIL import Image

    from einsmith.data.cifar_files import CLASSES

    part = folder.with_name(f"{folder.name}.part")
    for split in ("train", "test"):
        x, y = es.data.cifar10(split, say=print)
        for name in CLASSES:
            (part / split / name).mkdir(parents=True, exist_ok=True)
        for n, (image, label) in enumerate(zip(x, y, strict=True)):
            pixels = (image * 255).round().astype("uint8").transpose(1, 2, 0)
            Image.fromarray(pixels).save(part / split / CLASSES[label] / f"{n:05d}.png")
    part.rename(folder)


class Net(es.nn.Module):
    def __init__(self, classes: int):
        super().__init__()
        self.conv1, self.conv2 = es.nn.Conv2d(3, 16, 3, padding=1), es.nn.Conv2d(16, 32, 3, padding=1)
        self.head = es.nn.Linear(32, classes)

    def forward(self, x):
        f = es.functional
        x = f.max_pool2d(f.relu(self.conv1(x)), 2)
        x = f.relu(self.conv2(x))
        return self.head(x.mean(axis=(2, 3)))


def main(folder: str = "runs/cifar10-pictures", epochs: str = "5", size: int = 32, batch: int = 64) -> es.TrainStep:
    root = Path(folder)
    if not root.is_dir():
        try:
            write_cifar10(root)
        except es.DataError as e:
            sys.exit(str(e))
    train = es.data.image_folder(root / "train", size, errors="skip")
    test = es.data.image_folder(root / "test", size)
    print(train, [str(path) for path, _ in train.skipped])

    a, S = es.data.augment, es.optim.lr_scheduler
    scale = a.normalize([0.491, 0.482, 0.447], [0.247, 0.243, 0.262])
    change = a.compose(scale, a.random_crop(size // 8), a.random_flip())
    batches = es.data.batches(train.x, train.y, batch, seed=0, transform=change, threads=2)
    validation = es.data.batches(test.x, test.y, 2 * batch, transform=scale, threads=1)

    save = Path("runs/image_folder_example")
    if (save / "last").exists():
        step = es.load(save / "last", model=Net(len(train.classes)))
        print("going on after epoch", step.epoch)
    else:
        es.manual_seed(0)
        rate = S.SequentialLR(
            [S.LinearLR(2e-3, 0.1, total_iters=len(batches)), S.CosineAnnealingLR(2e-3, int(epochs) * len(batches))],
            milestones=[len(batches)],
        )
        rules = es.optim.Groups(
            es.optim.AdamW(lr=rate, weight_decay=0.05), plain=es.optim.Group(ndim=1, weight_decay=0.0)
        )
        model = Net(len(train.classes))
        step = es.TrainStep(model, es.functional.cross_entropy, rules, clip_grad_norm=1.0, ema=0.99)
    step.fit(
        batches, int(epochs), validation=validation, metrics={"f1": es.metrics.f1()},
        callbacks=[es.callbacks.Save(save, monitor="val_loss"), es.callbacks.CSVLog(save / "log.csv")],
    )  # fmt: skip
    return step


if __name__ == "__main__":
    main(*sys.argv[1:])
