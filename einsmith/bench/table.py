"""List the peers and problems of `einsmith bench`, for the processes of `bench.worker`."""

from __future__ import annotations

from einsmith.bench.networks import network_step
from einsmith.bench.problem import Workload

PEERS = {
    "einsmith": "einsmith.bench.peers.einsmith_peer",
    "torch": "einsmith.bench.peers.torch_peer",
    "compile": "einsmith.bench.peers.torch_peer",
    "jax": "einsmith.bench.peers.jax_peer",
    "tensorflow": "einsmith.bench.peers.tensorflow_peer",
    "xla": "einsmith.bench.peers.tensorflow_peer",
    "peak": "einsmith.bench.peers.peak",
}


def find(name: str) -> Workload:
    """Return the problem of a name, such as lenet5-b64. Raises KeyError where there is none."""
    network, _, batch = name.partition("-b")
    return network_step(network, int(batch))
