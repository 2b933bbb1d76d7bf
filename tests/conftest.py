"""What all tests share: a cache of their own, fixed seeds, and peers that are skipped with a reason where missing."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import lock_order

# Compiled code of the tests neither uses nor fills the user's cache. Set before einsmith reads its knobs.
_CACHE = tempfile.TemporaryDirectory(prefix="einsmith-tests-", ignore_cleanup_errors=True)
os.environ.setdefault("EINSMITH_CACHE_DIR", _CACHE.name)
# Nor does each run of the tests measure the machine; what is chosen for static figures is right as well.
os.environ.setdefault("EINSMITH_CALIBRATE", "0")

# Plans are made anew: tests exchange passes and costs, which a plan on disk would not follow.
os.environ.setdefault("EINSMITH_PLANS", "0")

# Processes that tests start find the modules compiled: to compile all of Einsmith takes each of them a second. So do
# the processes of the next run: to compile the tests, with the texts of their assertions, takes each of them six.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting cycles every 700 objects, as is the default, takes a tenth of the time where so many are made and freed;
# most of what is made lives on for a while and takes part in no cycle, so that a twentieth goes at every 20,000.
gc.set_threshold(1_000_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `thinned(n)` leaves out: of a test's cases that are not slow, all but every nth. Where a test
    has several parameters, those that stay show every value of each parameter that has no more values than they are."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thinned") and not item.get_closest_marker("slow"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        given = [tuple(enumerate(x.callspec._idlist)) for x in cases]  # type: ignore[attr-defined]
        stay = _choose_cases(given, cases[0].get_closest_marker("thinned").args[0])  # type: ignore[union-attr]
        for n, item in enumerate(cases):
            if n not in stay:
                item.add_marker("slow")


def _choose_cases(given: list[tuple[tuple[int, str], ...]], nth: int) -> set[int]:
    """Return which cases stay, a part of 1 / nth.

    Args:
        given: each case's values, as (which parameter, value).
        nth: of how many cases one stays.
    """
    counts = [len({values[n] for values in given}) for n in range(len(given[0]))]
    if sum(count > 1 for count in counts) <= 1:
        return set(range(0, len(given), nth))
    total = -(-len(given) // nth)
    wanted = {v for values in given for v in values if counts[v[0]] <= total}
    stay: set[int] = set()
    seen: set[tuple[int, str]] = set()
    while wanted - seen:  # cases that show most of what is wanted and, among those, most that is new
        news = [{*values} - seen for values in given]
        best = max(range(len(given)), key=lambda n: (len(news[n] & wanted), len(news[n])))
        stay.add(best)
        seen.update(given[best])
    # The others come one later at each nth, so that values that alternate meet many others.
    others = [n for n in range(len(given)) if (n + n // nth) % nth == 0 and n not in stay]
    more = min(total - len(stay), len(others))
    return stay | {others[n * len(others) // more] for n in range(more)}


def pytest_collection_finish() -> None:
    """What has been imported stays: collections, which take half a second for all of it, leave it out."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def every_object() -> Iterator[None]:
    """Within the test collections see everything again, and so does `gc.get_objects`."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def new_objects() -> None:
    """Within the test collections look at what it makes alone, which takes no time however much other tests hold."""
    gc.collect()
    gc.freeze()


# Tests run side by side, and threads of other libraries, which spin while they wait, would take each other's cores.
for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
    os.environ.setdefault(_threads, "1")

# Inductor tries what this processor says it has by building a program for each width of vectors, which takes seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Where a test asks PyTorch for more of them, they sleep while they wait.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A run in a shell's background inherits that Ctrl-C is ignored; tests of Ctrl-C are about programs in which it is not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

lock_order.install()


@pytest.fixture(autouse=True)
def ordered_locks() -> Iterator[None]:
    """No test, and no thread beside it, acquires a lock that a fork waits for under one that it cannot wait for."""
    lock_order.VIOLATIONS.clear()
    yield
    assert not lock_order.VIOLATIONS, "\n\n".join(lock_order.VIOLATIONS)


# Compilation time varies, and shared machines stall: no deadlines. The examples are the same at every run.
settings.register_profile(
    "einsmith",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("einsmith")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, so that a failure can be repeated."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def _peer(name: str):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed; `make setup` installs PyTorch, `make bench` all peers")
    return pytest.importorskip(name)


@pytest.fixture(scope="session")
def torch():
    """PyTorch, to compare with."""
    return _peer("torch")


@pytest.fixture(scope="session")
def jax():
    """JAX, to compare with."""
    return _peer("jax")
