"""Exports for AArch64, on such a processor or under qemu."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
from tests.export.common import WARNINGS, call
from tests.machines.aarch64 import compiler, emulator
from tests.training.test_examples import EXAMPLES, load

STEPS = 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["milstm", "lenet5"])
def test_training_on_aarch64(tmp_path, name) -> None:
    """Kernels are chosen for another machine and round otherwise: losses agree as training allows."""
    gcc, qemu = compiler(), emulator()
    x, y = load("train_from_c").samples(8)
    es.manual_seed(0)
    model = es.models.get(name, **({"hidden_size": 24} if name == "milstm" else {}))
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.SGD(lr=0.05), threads=2)
    out = es.export(step, tmp_path / "out", x, y, name="network", target="aarch64")
    (out / "batches").write_bytes(x.tobytes() + y.tobytes())
    program = tmp_path / "train"
    call([gcc, *WARNINGS, "-O1", "-static", f"-I{out}", "-o", program, EXAMPLES / "train_from_c.c", out / "network.o",
          "-lpthread", "-lm"])  # fmt: skip
    files = [out / "weights.safetensors", out / "batches", str(STEPS), tmp_path / "trained"]
    got = [float.fromhex(line) for line in call([*qemu, program, *files]).stdout.split()]
    want = [step(x, y) for _ in range(STEPS)]
    assert want[-1] < want[0]
    np.testing.assert_allclose(got, want, rtol=1e-4)
    with pytest.raises(es.SaveError):  # it is no library for this machine
        es.load_library(out)
