"""Find the group of processes that a launcher has started, from the environment, and share the host's cores."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from threading import Thread

from einsmith.base import VERSION, locks
from einsmith.base.errors import GroupError
from einsmith.base.system import processors
from einsmith.base.threads import start
from einsmith.distributed.group import SAY, ProcessGroup
from einsmith.distributed.transport import Alone, Transport
from einsmith.runtime.thread_count import recount_cores

MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
"""Variables, at least one of which each MPI launcher sets: Open MPI, MPICH and Intel MPI, PMIx (Slurm), MVAPICH."""
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables of which torchrun sets all."""


def init() -> ProcessGroup:
    """Return the group of processes to which this one belongs.

    Processes that mpirun, mpiexec or srun has started communicate through MPI (extra `einsmith[mpi]`), those of
    torchrun through torch.distributed with gloo; a process that was started by itself is a group of one. The cores of
    the host are divided among its processes: each keeps to its own cores, which are the default number of threads of
    programs. Call `init` once, before anything is compiled.

    It waits for the other processes for 30 minutes at most, and says so after a minute; Ctrl-C ends the wait.

    Raises GroupError where the launcher's engine is not installed, where two launchers' variables are set or RANK is
    not below the group's size, where the others have not come in time, and where the processes have different versions.
    """
    group = ProcessGroup(_begin(_find_engine(os.environ)))
    if group.size > 1:
        with locks.IMPORTING:
            from einsmith.codegen.cache.objects import source_hash  # imported late: it loads the compiler
        check_versions(group, VERSION, source_hash().hex())
        hosts = group.gather(platform.node())
        mine = [rank for rank, host in enumerate(hosts) if host == hosts[group.rank]]
        group.local_rank, group.local_size = mine.index(group.rank), len(mine)
        _share_cores(group, mine)
    return group


def find_launcher(variables: Mapping[str, str]) -> str:
    """Return "MPI", "torchrun" or "none", by the environment variables of launchers. Raises GroupError for both."""
    mpi = [name for name in MPI if name in variables]
    torchrun = all(name in variables for name in _TORCHRUN)
    if mpi and torchrun:
        raise GroupError(
            f"both MPI ({mpi[0]}) and torchrun (RANK, WORLD_SIZE) have started this process; use one of them"
        )
    return "MPI" if mpi else "torchrun" if torchrun else "none"


def check_versions(group: ProcessGroup, version: str, sources: str) -> None:
    """Check that all ranks run the same Einsmith. Raises GroupError, on every rank, which names their versions.

    sources: a digest of Einsmith's own files."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for rank, (other, digest) in enumerate(group.gather([version, sources])):
        ranks.setdefault((other, digest), []).append(str(rank))
    if len(ranks) > 1:
        versions = [f"{v} (sources {d[:12]}) on {', '.join(r)}" for (v, d), r in ranks.items()]
        raise GroupError(
            f"the ranks run different versions of Einsmith: {'; '.join(versions)}; install one version for all of them"
        )


def check_ranks(variables: Mapping[str, str]) -> None:
    """Check the numbers that torchrun's variables give. Raises GroupError."""
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = variables[name]
        if not text.isascii() or not text.isdigit():
            raise GroupError(f"the environment variable {name}={text!r} must be an integer of at least 0")
        numbers[name] = int(text)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise GroupError(
            f"the environment variables RANK={numbers['RANK']} and WORLD_SIZE={numbers['WORLD_SIZE']} do not fit: "
            "ranks count from 0 to WORLD_SIZE - 1"
        )
    if not 0 < numbers["MASTER_PORT"] < 1 << 16:
        raise GroupError(f"the variable MASTER_PORT={numbers['MASTER_PORT']} is not a port, from 1 to 65535")


def _begin(engine: Callable[[], Transport]) -> Transport:
    """Return an engine, which waits in a thread for the other processes, so that Ctrl-C ends the wait."""
    if engine is Alone:
        return engine()
    future: Future[Transport] = Future()

    def begin() -> None:
        try:
            future.set_result(engine())
        except BaseException as e:
            future.set_exception(e)

    start(Thread(target=begin, name="einsmith-init", daemon=True))
    waited = 0.0
    while not wait([future], SAY).done:
        waited += SAY
        print(f"einsmith: has waited {waited:.0f} s for the other processes of the group", file=sys.stderr)
    try:
        return future.result()
    except (RuntimeError, ValueError, OSError) as e:  # PyTorch's errors are among them
        reason = str(e).strip().partition("\n")[0]
        raise GroupError(f"the group cannot begin ({reason}): see that all its processes are started") from e


def _find_engine(variables: Mapping[str, str]) -> Callable[[], Transport]:
    launcher = find_launcher(variables)
    if launcher == "torchrun":
        check_ranks(variables)
    with locks.IMPORTING:
        try:
            if launcher == "MPI":
                from einsmith.distributed.mpi import MpiTransport

                return MpiTransport
            if launcher == "torchrun":
                from einsmith.distributed.gloo import GlooTransport

                return GlooTransport
        except ImportError as e:
            remedy = "pip install 'einsmith[mpi]'" if launcher == "MPI" else "install PyTorch"
            raise GroupError(f"{launcher} has started this process, but {e}; {remedy}") from e
    return Alone


def _share_cores(group: ProcessGroup, ranks: list[int]) -> None:
    """Restrict this process to its part of the cores that the processes of this host may use together.

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
