"""Requests to other processes, which hang, crash, answer nonsense, are killed, or whose parent is."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from einsmith.base import servers, workers
from einsmith.base.workers import Failed, Lost, Worker
from tests.base.test_processes import state, wait
from tests.threads import inside

SERVER = """
import os, signal, sys, threading, time

class Server:
    def begin(self, *given):
        self.given, self.asked = given, 0

    def count(self):
        self.asked += 1
        return self.asked, self.given

    def echo(self, *arguments):
        return arguments

    def pid(self):
        return os.getpid()

    def sleep(self, seconds):
        time.sleep(seconds)

    def fail(self):
        raise ArithmeticError("out of numbers")

    def end(self, status):
        os._exit(status)

    def die(self, number):
        os.kill(os.getpid(), number)
        time.sleep(3600)

    def talk(self):
        print("a line", flush=True)
        os.write(1, b"some bytes")
        try:
            return input()
        except EOFError:
            return "nothing to read"

    def lock(self):
        return threading.Lock()

    def pipes(self):
        return [n for n in map(int, os.listdir("/proc/self/fd")) if n > 2 and self.kind(n) == "pipe"]

    def kind(self, n):
        try:
            return os.readlink(f"/proc/self/fd/{n}").partition(":")[0]
        except OSError:
            return ""

    def write(self, data, seconds=0.0):
        for n in self.pipes():
            try:
                os.write(n, data)
            except OSError:  # the end that is read
                pass
        time.sleep(seconds)

    def write_later(self, data):
        threading.Timer(0.2, self.write, [data]).start()

    def close(self):
        for n in self.pipes():
            os.close(n)
        time.sleep(3600)
"""
SLOW = "import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\ntime.sleep(3600)"
PARENT = """
import sys
from einsmith.base.workers import Worker
worker = Worker(sys.argv[1])
print(worker.ask("pid"), flush=True)
exec(sys.argv[2])
"""
HANGS = 3600.0
LARGE = bytes(1 << 20)
"""More than a pipe holds."""


@pytest.fixture
def server(tmp_path: Path) -> str:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    return f"{file}:Server"


def answer(worker: Worker, looks: int = 1000) -> object:
    """What was posted is answered, at some time."""
    while looks and (result := worker.poll()) is None:
        time.sleep(0.01)
        looks -= 1
    return result


def test_a_posted_request_waits_for_nothing(worker: Worker) -> None:
    assert worker.poll() is None
    worker.post("count")
    assert worker.is_asked and answer(worker) == (1, ("a", 1)) and not worker.is_asked
    worker.post("count")
    assert answer(worker)[0] == 2 and worker.starts == 1
    assert worker.ask("count")[0] == 3 and worker.poll() is None
    worker.post("fail")
    with pytest.raises(Failed, match="out of numbers"):
        answer(worker)
    worker.post("die", signal.SIGKILL)
    with pytest.raises(Lost, match="SIGKILL"):
        answer(worker)
    worker.limit = 0.2
    worker.post("sleep", 100)
    with pytest.raises(Lost, match="did not end within 0.2 s"):
        answer(worker)
    worker.kill()
    with pytest.raises(Lost, match="the process is over"):
        worker.post("count")


def test_a_process_starts_without_a_request(worker: Worker) -> None:
    worker.post()
    while worker.is_asked:
        assert worker.poll() is None
    assert worker.begun and worker.starts == 1
    assert worker.ask("count")[0] == 1 and worker.starts == 1


@pytest.fixture
def worker(server: str) -> Iterator[Worker]:
    with Worker(server, 60.0, 60.0) as made:
        made.set_up("a", 1)
        yield made


def pid(worker: Worker) -> int:
    assert worker.process is not None
    return worker.process.pid


def ended(process: int) -> bool:
    return state(process) in ("", "Z")


def answers_again(worker: Worker, starts: int) -> None:
    """A lost process is ended and reaped; the next request is the first one of another process."""
    assert worker.process is None
    assert worker.ask("count") == (1, ("a", 1)) and worker.starts == starts


def waiting(worker: Worker, *request: object) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that waits for an answer, and the errors that it gets."""
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            worker.ask(*request)
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, errors


def test_one_process_answers_many_requests(worker: Worker) -> None:
    assert worker.starts == 0
    assert [worker.ask("count") for _ in range(3)] == [(n, ("a", 1)) for n in (1, 2, 3)]
    worker.set_up("b")
    assert worker.ask("count") == (1, ("b",)) and worker.starts == 1
    assert worker.ask("echo", LARGE, inf, "ü") == (LARGE, inf, "ü")


def test_a_module_serves_as_a_file_does(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with Worker("server:Server") as worker:
        assert worker.ask("echo", 5) == (5,)


def test_errors_of_a_request_cost_no_process(worker: Worker) -> None:
    with pytest.raises(Failed, match="^ArithmeticError: out of numbers$"):
        worker.ask("fail")
    with pytest.raises(Failed, match="AttributeError: .* 'unheard_of'"):
        worker.ask("unheard_of")
    with pytest.raises(Failed, match="TypeError: cannot pickle"):
        worker.ask("lock")
    with pytest.raises(Failed, match="cannot be sent to the other process: cannot pickle"):
        worker.ask("echo", threading.Lock())
    assert worker.ask("count")[0] == 1 and worker.starts == 1


def test_a_servers_own_input_and_output_are_no_messages(worker: Worker) -> None:
    assert worker.ask("talk") == "nothing to read"
    assert worker.ask("count")[0] == 1


def test_a_process_that_hangs_is_ended(worker: Worker) -> None:
    worker.start()
    process = pid(worker)
    with pytest.raises(Lost, match="^it did not end within 0.2 s$"):
        worker.ask("sleep", HANGS, limit=0.2)
    assert ended(process)
    answers_again(worker, 2)


def test_a_process_that_does_not_read_meets_the_limit(worker: Worker) -> None:
    worker.start()
    os.kill(pid(worker), signal.SIGSTOP)
    with pytest.raises(Lost, match="within 0.2 s"):
        worker.ask("echo", LARGE, limit=0.2)
    answers_again(worker, 2)


def test_a_process_that_does_not_begin_meets_the_limit_of_its_start(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    with Worker(f"{tmp_path / 'slow.py'}:Server", start=0.5) as worker, pytest.raises(Lost, match="within 0.5 s"):
        worker.ask("count")


def test_a_server_that_cannot_be_imported_is_reported() -> None:
    with Worker("no.such.module:Server") as worker, pytest.raises(Lost, match="the process ended with status 1"):
        worker.ask("count")


@pytest.mark.parametrize(
    "request_, reason",
    [
        (("die", signal.SIGSEGV), "the process died of SIGSEGV"),
        (("die", signal.SIGKILL), "the process died of SIGKILL"),
        (("end", 3), "the process ended with status 3"),
        (("close",), "the process has closed its input or output"),
    ],
    ids=["crashes", "killed", "ends", "closes"],
)
def test_a_process_that_dies_is_reported_and_replaced(worker: Worker, request_: tuple, reason: str) -> None:
    with pytest.raises(Lost, match=f"^{reason}$"):
        worker.ask(*request_)
    answers_again(worker, 2)


@pytest.mark.parametrize(
    "data",
    [b"x" * 100, servers.MARK + (5).to_bytes(8, "little") + b"hello", servers.encode(5)],
    ids=["noise", "no pickle", "no answer"],
)
def test_garbage_is_no_answer(worker: Worker, data: bytes) -> None:
    with pytest.raises(Lost, match="^it wrote something that is not an answer$"):
        worker.ask("write", data)
    answers_again(worker, 2)


def test_part_of_an_answer_meets_the_limit(worker: Worker) -> None:
    worker.start()
    with pytest.raises(Lost, match="within 0.2 s"):
        worker.ask("write", servers.MARK + (1 << 62).to_bytes(8, "little") + b"x", HANGS, limit=0.2)
    answers_again(worker, 2)


def test_garbage_between_requests_is_no_answer(worker: Worker) -> None:
    worker.ask("write_later", b"x" * 100)
    assert worker.process is not None
    select.select([worker.process.stdout], [], [])  # until it has come
    with pytest.raises(Lost, match="not an answer"):
        worker.ask("count")
    answers_again(worker, 2)


def test_a_process_killed_between_requests_is_replaced(worker: Worker) -> None:
    worker.start()
    os.kill(pid(worker), signal.SIGKILL)
    assert wait(lambda: ended(pid(worker)))
    with pytest.raises(Lost, match="died of SIGKILL"):
        worker.ask("count")
    answers_again(worker, 2)


def test_ctrl_c_between_question_and_answer_leaves_no_answer_behind(worker: Worker) -> None:
    worker.start()
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        worker.ask("sleep", HANGS)
    answers_again(worker, 2)


def test_ctrl_c_does_not_end_the_process_itself(worker: Worker) -> None:
    worker.start()
    os.kill(pid(worker), signal.SIGINT)
    assert worker.ask("count")[0] == 1 and worker.starts == 1


def test_a_killed_worker_is_over(worker: Worker) -> None:
    worker.start()
    process = pid(worker)
    thread, errors = waiting(worker, "sleep", HANGS)
    time.sleep(0.1)
    worker.kill()
    thread.join(60)
    assert [str(e) for e in errors] == ["the process died of SIGKILL"] and ended(process)
    with pytest.raises(Lost, match="^the process is over$"):
        worker.ask("count")
    assert worker.starts == 1


def test_a_worker_killed_while_its_process_starts_is_over(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    popen, begun, go_on = subprocess.Popen, threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        begun.set()
        go_on.wait(60)
        return popen(*args, **kwargs)

    monkeypatch.setattr(workers.subprocess, "Popen", slow)
    thread, errors = waiting(worker, "sleep", HANGS)
    begun.wait(60)
    worker.kill()
    go_on.set()
    thread.join(60)
    assert [str(e) for e in errors] == ["the process is over"] and worker.process is None


def test_no_descriptors_stay_open(worker: Worker) -> None:
    worker.start()
    worker.close()
    before = os.listdir("/proc/self/fd")
    for request in (("end", 3), ("write", b"x" * 100), ("close",)):
        with pytest.raises(Lost):
            worker.ask(*request)
    worker.start()
    worker.close()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    "action", ["worker.ask('sleep', 3600)", "import time; time.sleep(3600)"], ids=["asks", "rests"]
)
def test_a_process_ends_with_its_parent(server: str, action: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, server, action], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        assert not ended(process)
        parent.kill()
    assert wait(lambda: ended(process))


def test_a_forked_child_leaves_its_parents_processes_alone(worker: Worker) -> None:
    worker.start()
    process, held = pid(worker), worker.process
    assert held is not None and held.stdin is not None
    pipe = held.stdin.fileno()
    child = os.fork()
    if not child:
        good = worker.process is None and not os.path.exists(f"/proc/self/fd/{pipe}")
        worker.close()
        good = good and worker.ask("pid") != process  # it may have one of its own
        worker.close()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.ask("pid") == process and worker.starts == 1


def test_a_fork_waits_until_a_process_has_started(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child would hold the far ends of its pipes, so that nobody would see it end."""
    popen, begun, done = subprocess.Popen, threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        begun.set()
        time.sleep(0.3)
        made = popen(*args, **kwargs)
        done.set()
        return made

    monkeypatch.setattr(workers.subprocess, "Popen", slow)
    thread, errors = waiting(worker, "count")
    begun.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if done.is_set() and worker.process is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.join(60)
    assert not errors and not inside()


def test_a_process_sees_nothing_of_the_parents_other_descriptors(worker: Worker) -> None:
    read, write = os.pipe()
    try:
        os.set_inheritable(write, True)
        assert len(worker.ask("pipes")) == 2
    finally:
        os.close(read)
        os.close(write)
