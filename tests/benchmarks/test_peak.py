from __future__ import annotations

import numpy as np

from benchmarks.peers.machine import Peak


def test_the_peak_kernel_does_its_work_on_every_thread() -> None:
    """x = x/2 + 1 tends to 2 in every lane of every chain."""
    session = Peak(2)
    assert session.step() == session.flops > 1e8
    out = session.results()["out"]
    assert np.allclose(out, 2 * session.chains)
