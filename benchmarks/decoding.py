"""Time of a token of a language model's text against the time in which its weights are read once.

python -m benchmarks.decoding [--threads 1] [--rounds 15] [--length 256] [--config FOLDER] [--weights bf16]

The model has the size of SmolLM-135M, or that of a config.json, and random weights. Both sides take turns in every
round: a sum over an array of the weights' size, and a step of `es.models.Decoder`. Printed are least and median times,
and the median of the ratio of a round's two times.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import einsmith as es
from einsmith.base.precisions import KEPT
from einsmith.models import Decoder


def seconds_of(function, *args) -> float:
    begun = time.perf_counter()
    function(*args)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=256, help="tokens in the cache")
    parser.add_argument("--config", help="folder with config.json; the default is SmolLM-135M's")
    parser.add_argument("--weights", default="fp32", choices=("fp32", *KEPT), help="how weights are kept")
    options = parser.parse_args()
    es.set_threads(options.threads)
    model = es.models.llama(options.config).eval()
    if options.weights != "fp32":
        es.nn.freeze(model, keep=options.weights)
    size = sum(x.memory.physical.nbytes for x in {id(x): x for _, x in model._persistent_state()}.values())
    decoder, total = Decoder(model, 1, options.length + options.rounds + 2), es.jit(lambda x: x.sum())
    weights, token = np.ones(size // 4, np.float32), np.array([[1]])
    first = seconds_of(decoder.read, np.ones((1, options.length), np.int64)), seconds_of(decoder.read, token)
    total(weights)
    rounds = np.array([(seconds_of(total, weights), seconds_of(decoder.read, token)) for _ in range(options.rounds)])
    print(f"{size / 1e6:.0f} MB of weights, {options.threads} threads")
    print(f"first prompt {first[0]:.1f} s, first token {first[1]:.1f} s")
    for name, times in zip(("sum", "token"), rounds.T, strict=True):
        rate = size / times.min() / 1e9
        print(f"{name:<6} {times.min() * 1e3:7.1f} ms  median {np.median(times) * 1e3:7.1f}  {rate:.1f} GB/s")
    print(f"share of the bandwidth: {np.median(rounds[:, 0] / rounds[:, 1]):.2f}")


if __name__ == "__main__":
    main()
