"""Use an installed Einsmith as a new user does: a formula, its gradient, a network, a save, the commands.

Run in a folder of its own by the Python of an environment that has nothing but the wheel and what it requires.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

MAX_MODULES = ("torch", "onnx", "matplotlib", "sklearn", "onnxruntime", "jax")
"""Libraries that `import einsmith` must leave alone."""


def check_import() -> float:
    """Import the package; return the seconds that this takes."""
    start = time.perf_counter()
    import einsmith

    seconds = time.perf_counter() - start
    assert einsmith.__version__ == metadata.version("einsmith")
    assert Path(einsmith.__file__).is_relative_to(sys.prefix), einsmith.__file__
    assert not [name for name in MAX_MODULES if name in sys.modules]
    return seconds


def check_formula() -> None:
    """Compare a formula and its gradient with NumPy."""
    import numpy as np

    import einsmith as es

    conv = es.op("y[b,k,p] = sum[c,r](x[b,c,p+r] * w[k,c,r])")
    x, w = np.random.rand(3, 2, 11).astype("f4"), np.random.rand(5, 2, 4).astype("f4")
    windows = np.lib.stride_tricks.sliding_window_view(x, 4, axis=2)
    np.testing.assert_allclose(conv(x, w), np.einsum("bcpr,kcr->bkp", windows, w), rtol=1e-5)
    _, pullback = es.vjp(conv, x, w)
    _, dw = pullback(np.ones((3, 5, 8), "f4"))
    np.testing.assert_allclose(dw, np.broadcast_to(windows.sum((0, 2)), (5, 2, 4)), rtol=1e-5)


def check_training(folder: Path) -> None:
    """Train a network, save it and go on."""
    import numpy as np

    import einsmith as es

    es.manual_seed(0)
    x = np.random.default_rng(0).standard_normal((256, 20)).astype("f4")
    y = (x[:, 0] > 0).astype("i8")
    model = es.nn.Sequential(es.nn.Linear(20, 16), es.nn.ReLU(), es.nn.Linear(16, 2))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=0.02))
    step.fit(es.data.batches(x, y, 64, seed=0), epochs=10)
    accuracy = (model.predict(x).argmax(1) == y).mean()
    assert accuracy > 0.9, accuracy
    es.save(step, folder / "run")
    again = es.load(folder / "run", model=model, loss=es.functional.cross_entropy)
    assert again.steps == step.steps == 40


def check_commands(data: Path, folder: Path) -> None:
    """Run the command `einsmith`, as a process of its own, on files like MNIST's."""
    command = shutil.which("einsmith", path=str(Path(sys.executable).parent))
    assert command is not None

    def run(*arguments: str) -> str:
        done = subprocess.run([command, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    assert metadata.version("einsmith") in run("info")
    train = ["train", "lenet5", "--data", str(data), "--epochs", "2", "--batch", "64", "--json"]
    results = [json.loads(line) for line in run(*train, "--save", str(folder / "lenet")).splitlines()]
    assert results[-1]["epochs"] == 2 and results[-1]["accuracy"] > 0.5, results[-1]
    assert "kernels" in run("explain", "mlp3")


def main(data: str) -> None:
    """Run all checks. data: a folder with files like MNIST's."""
    assert not [c for c in ("cc", "gcc", "clang", "c++") if shutil.which(c)], "a compiler is on PATH"
    folder = Path.cwd()
    seconds = check_import()
    check_formula()
    check_training(folder)
    check_commands(Path(data), folder)
    size = sum(f.locate().stat().st_size for f in metadata.files("einsmith") or () if f.locate().is_file())
    print(f"Python {sys.version.split()[0]}: imported in {seconds:.2f} s, {size / 1e6:.1f} MB installed")


if __name__ == "__main__":
    main(sys.argv[1])
