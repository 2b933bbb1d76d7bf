"""An update rule of one's own is a formula too, compiled into the step: Lion (arXiv 2302.06675).

python examples/custom_optimizer.py
"""

from __future__ import annotations

import numpy as np

import einsmith as es

# p is the parameter, g its gradient; m is read before it is written, so it is state.
LION = """
    p[i] = p[i] - lr*sign(b1*m[i] + (1-b1)*g[i])
    m[i] = b2*m[i] + (1-b2)*g[i]
"""


def main() -> None:
    lion = es.optim.Rule(LION, lr=1e-3, b1=0.9, b2=0.99)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((512, 784)).astype(np.float32)
    y = (x @ rng.standard_normal((784, 10))).argmax(1)

    es.manual_seed(0)
    step = es.TrainStep(es.models.mlp3(), es.functional.cross_entropy, lion)
    first = step(x, y)
    for _ in range(60):
        last = step(x, y)
    print(f"loss {first:.4f} -> {last:.4f}")

    step.optimizer.lr = 1e-4  # a run-time number: nothing is compiled anew
    print(f"and with a smaller rate {step(x, y):.4f}")


if __name__ == "__main__":
    main()
