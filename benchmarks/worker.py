"""The peers and problems of all benchmarks, for the processes of `einsmith.bench.worker`."""

from __future__ import annotations

from benchmarks import attention_problems, models, pair_problems, problems, random_cases, recurrent_problems
from benchmarks.kernel_cases import CASES
from einsmith.bench.problem import Workload

PEERS = {
    "einsmith": "benchmarks.peers.einsmith_peer",
    "static-60": "benchmarks.peers.einsmith_peer",
    "static-300": "benchmarks.peers.einsmith_peer",
    "dynamic": "benchmarks.peers.einsmith_peer",
    "torch": "benchmarks.peers.torch_peer",
    "compile-max": "benchmarks.peers.torch_peer",
    "compile": "benchmarks.peers.torch_peer",
    "compile-cell": "benchmarks.peers.torch_peer",
    "jax": "benchmarks.peers.jax_peer",
    "jax-unrolled": "benchmarks.peers.jax_peer",
    "tensorflow": "benchmarks.peers.tensorflow_peer",
    "tensorflow-unrolled": "benchmarks.peers.tensorflow_peer",
    "xla": "benchmarks.peers.tensorflow_peer",
    "xla-unrolled": "benchmarks.peers.tensorflow_peer",
    "keops": "benchmarks.peers.keops_peer",
    "peak": "einsmith.bench.peers.peak",
    "copy": "benchmarks.peers.copying",
    "special": "benchmarks.peers.special",
    "reference": "benchmarks.peers.torch_peer",
}
PROBLEMS = CASES | models.TRAINING | problems.OPERATORS | recurrent_problems.RECURRENT | recurrent_problems.FIRST_CALLS


def find(name: str) -> Workload:
    """The problem of a name. Raises KeyError where there is none."""
    drawn = (cases.named(name) for cases in (random_cases, pair_problems, attention_problems))
    return next(filter(None, drawn), None) or PROBLEMS[name]
