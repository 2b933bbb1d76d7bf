"""LeNet-5 learns MNIST: the model, one native call a step, evaluation, saving and going on.

python examples/lenet_mnist.py [folder for the save]
"""

from __future__ import annotations

import sys

import einsmith as es


def main(folder: str = "runs/lenet_example") -> None:
    x, y = es.data.mnist("train", say=print)
    x_test, y_test = es.data.mnist("test", say=print)

    es.manual_seed(0)
    model = es.models.lenet5()
    step = es.TrainStep(model, es.functional.cross_entropy, es.optim.Adam(lr=2e-3))

    # Forward, backward and update, compiled together at the first call.
    print("loss of the first batch:", step(x[:256], y[:256]))
    step.fit(es.data.batches(x, y, 256, seed=0), epochs=2)
    print("on the test images:", step.evaluate(es.data.batches(x_test, y_test, 500)))

    es.save(step, folder)
    again = es.load(folder)
    again.optimizer.lr = 5e-4  # compiles nothing anew
    again.fit(es.data.batches(x, y, 256, seed=0), epochs=3)
    print("after one more epoch:", again.evaluate(es.data.batches(x_test, y_test, 500)))

    logits = again.model.predict(x_test[:8])
    print("predicted", logits.argmax(1), "labels", y_test[:8])


if __name__ == "__main__":
    main(*sys.argv[1:])
