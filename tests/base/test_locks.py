"""Locks that several threads hold: errors instead of waiting for ever, guards that become one."""

import gc
import os
import threading
import time
from contextlib import contextmanager

import pytest

from einsmith.base import locks
from einsmith.base.errors import EinsmithError
from einsmith.base.locks import Awaited, Guard, Reentrant, join
from einsmith.runtime.queues import RunQueue
from tests import lock_order
from tests.threads import inside, readers, waits


def run(*functions, seconds=60):
    """Run functions on threads of their own, and raise what they raise."""
    errors = []

    def caught(f):
        try:
            f()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=caught, args=(f,), daemon=True) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join(seconds)
    assert not any(t.is_alive() for t in threads), "threads wait for ever"
    return errors


@pytest.mark.parametrize("kind", [lambda: Reentrant("busy"), lambda: Awaited("busy"), Guard])
@pytest.mark.parametrize("count", [2, 3])
def test_a_cycle_of_waiting_threads_ends_in_an_error(kind, count):
    chain = [kind() for _ in range(count)]
    barrier = threading.Barrier(count)
    done = []

    def take(n):
        with chain[n]:
            barrier.wait()
            with chain[(n + 1) % count]:
                done.append(n)

    errors = run(*(lambda n=n: take(n) for n in range(count)))
    assert len(errors) >= 1 and len(done) == count - len(errors)
    assert all(isinstance(e, EinsmithError) and "wait for each other" in str(e) for e in errors)
    for lock in chain:  # what is left is sound
        with lock:
            pass
    assert not waits() and threading.get_ident() not in inside()


def test_waiting_without_a_cycle_is_no_error():
    first, second = Awaited("first"), Awaited("second")
    counts = [0]

    def work():
        for _ in range(200):
            with first, second:
                counts[0] += 1

    assert run(*[work] * 4) == []
    assert counts == [800]


def test_holding_one_joined_guard_holds_all():
    guards = [Guard() for _ in range(5)]
    other = Guard()
    join(guards[:3])
    join(guards[2:])
    entered = threading.Event()

    def take(guard):
        with guard:
            entered.set()

    for held in guards:
        for wanted in guards:
            entered.clear()
            with held:
                thread = threading.Thread(target=take, args=(wanted,), daemon=True)
                thread.start()
                assert not entered.wait(0.01)
            thread.join(60)
            assert entered.is_set()
    with guards[0]:
        assert run(lambda: take(other)) == []


def test_guards_are_joined_when_one_is_first_held():
    parts = [Guard(), Guard()]
    both = Guard(parts)
    assert not parts[0].is_joined(parts[1])
    with both:
        assert parts[0].is_joined(parts[1]) and parts[0].is_joined(both)


def test_a_guard_stays_held_while_it_is_joined_by_its_holder():
    """The lock of the outermost block is that of all: it is released last."""
    first, second, third = Guard(), Guard(), Guard()
    with second:
        with first:
            join([first, second, third])
        taken = []

        def take(guard):
            with guard:
                taken.append(guard)

        threads = [threading.Thread(target=take, args=(g,), daemon=True) for g in (first, second, third)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(0.02)
        assert taken == []
    for t in threads:
        t.join(60)
    assert len(taken) == 3


def test_joining_waits_for_holders_and_excludes_them_afterwards():
    """Counts kept under any of the guards, which are joined in the middle, lose nothing."""
    guards = [Guard() for _ in range(8)]
    total = [0]

    def count(n):
        for k in range(300):
            if k == 50 * (n % 3):
                join(guards)
            if k > 150:
                with guards[(n + k) % 8]:
                    value = total[0]
                    threading.Event().wait(0) if k % 50 == 0 else None
                    total[0] = value + 1

    assert run(*(lambda n=n: count(n) for n in range(4))) == []
    assert total == [4 * 149]


def count_locks():
    """Return the number of awaited locks in memory."""
    gc.collect()
    return sum(issubclass(type(x), Awaited) for x in gc.get_objects())


def test_unreferenced_guards_are_freed(new_objects):
    before = count_locks()
    kept = Guard()
    for _ in range(100):
        with Guard([kept]):
            pass
    assert count_locks() <= before + 1


def reading(guard):
    """Count the calling thread among those that read the values of a guard."""
    with guard:
        guard.begin_reading()


def test_a_guard_is_held_when_its_readers_have_finished():
    guards = [Guard(), Guard()]
    reads, leave, order = threading.Event(), threading.Event(), []

    def read():
        reading(guards[0])
        reads.set()
        leave.wait()
        order.append("read")
        guards[0].end_reading()

    thread = threading.Thread(target=read)
    thread.start()
    reads.wait()
    threading.Timer(0.02, leave.set).start()
    for change in (lambda: join(guards), guards[1].__enter__):
        change()
        order.append("changed")
    guards[1].__exit__()
    thread.join()
    assert order == ["read", "changed", "changed"] and not readers(guards[0])


def test_a_reader_changes_values_itself():
    """Its own reads keep no thread out, joined or not."""
    one, two = Guard(), Guard()
    reading(one), reading(one), reading(two)
    with one:
        pass
    join([one, two])
    me = threading.get_ident()
    assert readers(one) == {me: 3}
    one.end_reading(), two.end_reading(), one.end_reading()
    with two:
        assert not readers(one)


def test_reads_end_at_a_mark():
    guard = Guard()
    mark = guard.mark()
    reading(guard)
    guard.__enter__()
    guard.restore(mark)
    assert guard.mark() == mark == (0, 0, 0)


def test_a_reader_that_waits_for_who_waits_for_it():
    """The reader waits for what the other thread holds, which waits for the reads to end: one of them gets an error."""
    read, held = Guard(), Reentrant("busy")
    reading(read)
    entered, errors = threading.Event(), []

    def change():
        with held:
            entered.set()
            with read:
                errors.append("changed")

    thread = threading.Thread(target=change)
    thread.start()
    entered.wait()
    while thread.ident not in waits():
        time.sleep(0.001)
    with pytest.raises(EinsmithError, match="wait for each other"), held:
        raise AssertionError
    read.end_reading()
    thread.join()
    assert errors == ["changed"] and not waits()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forgets_the_reads_of_other_threads():
    guard, reads, leave = Guard(), threading.Event(), threading.Event()

    def read():
        reading(guard)
        reads.set()
        leave.wait()
        guard.end_reading()

    thread = threading.Thread(target=read)
    thread.start()
    reads.wait()
    child = os.fork()
    if not child:
        with guard:
            os._exit(len(readers(guard)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    leave.set()
    thread.join()


def reads(guard):
    """Return a block in which the calling thread reads the values of a guard."""

    @contextmanager
    def block():
        reading(guard)
        try:
            yield
        finally:
            guard.end_reading()

    return block()


@contextmanager
def runs(queue):
    """Hold the lock of a queue of runs."""
    with queue.lock:
        locks.RUNNING.holders[threading.get_ident()] = queue
        yield
        del locks.RUNNING.holders[threading.get_ident()]


def blocked(kind):
    """Return two blocks: a thread waits in the second one until another one has left the first."""
    if kind == "reads":
        guard = Guard()
        return lambda: reads(guard), lambda: guard
    if kind == "runs":
        queue = RunQueue(0)
        return lambda: runs(queue), lambda: locks.RUNNING.awaited(queue.lock)
    lock = Reentrant("busy")
    return lambda: lock, lambda: lock


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("kind", ["holds", "reads", "runs"])
def test_a_fork_lets_threads_go_on_that_a_holder_waits_for(kind, length, monkeypatch):
    """The holder of an awaited lock waits, through others, for a thread that acquires another awaited lock."""
    monkeypatch.setattr(locks, "PATIENCE", 5.0)
    first, free, between = Awaited("first"), Awaited("free"), [Reentrant("busy") for _ in range(length - 1)]
    hold, wait = blocked(kind)
    held = threading.Barrier(length + 2)

    def acquire():
        with hold():
            held.wait()
            while not locks._forking:
                time.sleep(0.001)
            with free:
                pass

    def follow(own, following):
        with own:
            held.wait()
            with following():
                pass

    own, following = [first, *between], [*(lambda lock=lock: lock for lock in between), wait]
    threads = [threading.Thread(target=follow, args=x, daemon=True) for x in zip(own, following, strict=True)]
    threads.append(threading.Thread(target=acquire, daemon=True))
    for t in threads:
        t.start()
    held.wait()
    while len(waits()) < length:
        time.sleep(0.001)
    child = os.fork()
    if not child:
        try:
            with first, free:
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for t in threads:
        t.join(60)
    assert not waits()


def test_the_order_of_locks_is_watched():
    """What all tests are checked for is seen: an awaited lock under a plain one."""
    plain, awaited = locks.lock(), Awaited("busy")
    with awaited, plain:
        pass
    assert not lock_order.VIOLATIONS
    with plain, awaited:
        pass
    assert len(lock_order.VIOLATIONS) == 1
    lock_order.VIOLATIONS.clear()
