"""Find the group of processes that a launcher has started, from the environment, and share the host's cores."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from einsmith.base import locks
from einsmith.base.errors import GroupError
from einsmith.base.system import processors
from einsmith.distributed.group import ProcessGroup
from einsmith.distributed.transport import Alone, Transport
from einsmith.runtime.thread_count import recount_cores

_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
"""Variables of which MPI's launchers set at least one: Open MPI, MPICH and Intel MPI, PMIx (Slurm), MVAPICH."""
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of which torchrun sets all."""


def init() -> ProcessGroup:
    """Return the group of processes to which this one belongs.

    Processes that mpirun, mpiexec or srun has started communicate through MPI (extra `einsmith[mpi]`), those of
    torchrun through torch.distributed with gloo; a process that was started by itself is a group of one. The cores of
    the host are divided among its processes: each keeps to its own cores, which are the default number of threads of
    programs. Call `init` once, before anything is compiled.

    Raises GroupError where the launcher's engine is not installed, where two launchers' variables are set, and where
    a process has another engine than the others.
    """
    transport = _find_transport(os.environ)
    group = ProcessGroup(transport)
    if group.size > 1:
        hosts = group.gather(platform.node())
        mine = [rank for rank, host in enumerate(hosts) if host == hosts[group.rank]]
        group.local_rank, group.local_size = mine.index(group.rank), len(mine)
        _share_cores(group, mine)
    return group


def find_launcher(variables: Mapping[str, str]) -> str:
    """Return "MPI", "torchrun" or "none", by the environment variables of launchers. Raises GroupError for both."""
    mpi = [name for name in _MPI if name in variables]
    torchrun = all(name in variables for name in _TORCHRUN)
    if mpi and torchrun:
        raise GroupError(
            f"both MPI ({mpi[0]}) and torchrun (RANK, WORLD_SIZE) have started this process; use one of them"
        )
    return "MPI" if mpi else "torchrun" if torchrun else "none"


def _find_transport(variables: Mapping[str, str]) -> Transport:
    launcher = find_launcher(variables)
    with locks.IMPORTING:
        try:
            if launcher == "MPI":
                from einsmith.distributed.mpi import MpiTransport

                return MpiTransport()
            if launcher == "torchrun":
                from einsmith.distributed.gloo import GlooTransport

                return GlooTransport()
        except ImportError as e:
            remedy = "pip install 'einsmith[mpi]'" if launcher == "MPI" else "install PyTorch"
            raise GroupError(f"{launcher} has started this process, but {e}; {remedy}") from e
    return Alone()


def _share_cores(group: ProcessGroup, ranks: list[int]) -> None:
    """Keep this process to its part of the cores that the processes of this host may use together.

    Processes that a launcher has bound to cores of their own stay there."""
    if not processors.can_restrict():
        return
    cores = processors.cores()
    masks = group.gather(cores)
    if any(masks[rank] != cores for rank in ranks) or len(cores) < len(ranks):
        return
    granted = min(processors.physical_cores(), len(cores))
    first, end = (n * granted // len(ranks) for n in (group.local_rank, group.local_rank + 1))
    processors.restrict([cpu for core in cores[first : max(end, first + 1)] for cpu in core])
    recount_cores()
