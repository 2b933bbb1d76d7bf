"""Examples that train, at a small size."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_images_of_a_folder(rng, tmp_path, monkeypatch, capsys) -> None:
    for split, n in (("train", 12), ("test", 4)):
        for k, name in enumerate(("red", "green")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 120, (9, 11, 3), dtype=np.uint8)
                pixels[..., k] += 100
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{i}.png")
    (tmp_path / "data" / "train" / "red" / "broken.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    example = load("image_folder")
    step = example.main("data", "2", size=8, batch=8)
    assert step.epoch == 2 and "1 skipped" in capsys.readouterr().out
    step = example.main("data", "10", size=8, batch=8)
    assert step.epoch == 10 and "going on after epoch 2" in capsys.readouterr().out
    assert step.history[-1]["loss"] < step.history[0]["loss"] and step.history[-1]["val_f1"] >= 0
    assert len((tmp_path / "runs" / "image_folder_example" / "log.csv").read_text().splitlines()) == 11
