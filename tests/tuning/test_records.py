"""The store of tuned configurations: what is kept, and that nothing that happens to it stops who uses it."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from einsmith.base.errors import StoreError
from einsmith.cost.facts import Target
from einsmith.schedule.kernel import Kernel
from einsmith.tuning.calibration import store
from einsmith.tuning.kernels import database, records
from einsmith.tuning.kernels.records import Record
from tests import untrusted
from tests.caches import forget
from tests.kernels.samples import conv, product

HERE = Target()
ELSEWHERE = replace(HERE, l2=1 << 30)
KERNEL = product(13, 37, 19)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the test's own, which does not exist yet."""
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    forget("problems of the store of tuned configurations")
    monkeypatch.setattr(database, "_unusable", {})
    yield tmp_path / "tuning"


def record(kernel: Kernel = KERNEL, text: str = "contraction mr=3", when: float = 1000.0) -> Record:
    return Record(kernel.digest.hex(), text, 1e-3, 0.01, 2e-3, when, 1, "a product")


def put(text: str, kernel: Kernel = KERNEL, target: Target = HERE, when: float = 1000.0) -> None:
    records.record_choice(kernel, target, record(kernel, text, when))


def test_records_are_found_on_the_same_machine_alone(folder: Path) -> None:
    assert records.text_of(KERNEL, HERE) == "" and not folder.exists()
    put("first")
    put("second")
    other = product(13, 37, 20)
    put("another", other)
    assert records.texts_of([KERNEL, other, product(1, 1, 1)], HERE) == {KERNEL: "second", other: "another"}
    for target in (ELSEWHERE, replace(HERE, cores=2), replace(HERE, winograd=True)):
        assert records.text_of(KERNEL, target) == ""
        assert guesses(KERNEL, target) == ["second"]
    assert records.text_of(KERNEL, replace(HERE, fma_per_second=1.0)) == "second", "calibration is no other machine"
    assert guesses(KERNEL, HERE) == []
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    many = [product(m, 5, 7) for m in range(1, 1203)]
    assert records.texts_of([*many, KERNEL], HERE) == {KERNEL: "second"}


def guesses(kernel: Kernel, target: Target) -> list[str]:
    return [win.text for win in records.list_guesses(kernel, target)]


def similar(kernel: Kernel, target: Target) -> list[str]:
    return [win.text for win in records.list_similar_guesses(kernel, target)]


def test_other_sources_are_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    put("old")
    monkeypatch.setattr(records, "version", lambda: "others")
    assert records.text_of(KERNEL, HERE) == "" and guesses(KERNEL, HERE) == ["old"]
    put("new")
    assert records.text_of(KERNEL, HERE) == "new" and guesses(KERNEL, HERE) == ["old"]


def test_confirming_and_listing() -> None:
    put("contraction mr=3")
    records.confirm(KERNEL, HERE)
    records.confirm(KERNEL, HERE)
    records.confirm(product(2, 2, 2), HERE)
    (found,) = records.list_records()
    assert found.record == record()._replace(confirmed=3) and found.own and found.version == records.version()


def test_the_nearest_extents_come_first() -> None:
    for n in (200, 20, 36, 1000):
        put(f"n={n}", product(13, n, 19))
    put("convolved", conv(2, 3, 9, 17, 5, 3, 3, 1))
    put("elsewhere", product(13, 37, 18), ELSEWHERE)
    put("itself")
    assert similar(KERNEL, HERE) == ["n=36", "n=20", "n=200", "n=1000", "elsewhere"]
    assert similar(product(13, 37, 19, "NT"), HERE) == [], "another order of axes is another structure"


def test_one_record_is_found_and_removed() -> None:
    assert records.find(KERNEL, HERE) is None
    put("first")
    assert records.find(KERNEL, HERE) == record()._replace(text="first")
    records.remove(KERNEL, ELSEWHERE)
    assert records.find(KERNEL, HERE) is not None
    records.remove(KERNEL, HERE)
    assert records.find(KERNEL, HERE) is None


def test_forgetting() -> None:
    other = product(13, 37, 20)
    put("first")
    put("second", other)
    assert records.forget("0" * 32) == 0
    assert records.forget(KERNEL.digest.hex()[:8]) == 1
    assert records.texts_of([KERNEL, other], HERE) == {other: "second"}
    assert records.forget() == 1 and records.list_records() == []


def test_the_number_of_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_RECORDS", 5)
    for n in range(1, 9):
        put(f"n={n}", product(n, 5, 7), when=float(n))
    assert [x.record.text for x in records.list_records()] == ["n=8", "n=7", "n=6", "n=5", "n=4"]


def test_imported_records_do_not_replace_own_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for n in range(1, 6):
        put(f"theirs={n}", product(n, 5, 7), when=2e9 + n)
    records.export_file(tmp_path / "theirs.json")
    records.forget()
    monkeypatch.setattr(records, "MAX_RECORDS", 4)
    for n in range(1, 4):
        put(f"own={n}", product(n, 5, 7), when=float(n))
    records.import_file(tmp_path / "theirs.json")
    assert sorted(x.record.text for x in records.list_records()) == ["own=1", "own=2", "own=3", "theirs=5"]
    put("own=4", product(4, 5, 7), when=4.0)
    assert sorted(x.record.text for x in records.list_records()) == ["own=1", "own=2", "own=3", "own=4"]


# -- files for others


def test_a_file_of_another_machine_is_a_first_guess(tmp_path: Path) -> None:
    put("contraction mr=3")
    file = tmp_path / "tuned.json"
    assert records.export_file(file) == 1
    put("contraction mr=5")
    assert records.import_file(file) == 1
    assert records.text_of(KERNEL, HERE) == "contraction mr=5"
    assert guesses(KERNEL, HERE) == ["contraction mr=3"]
    records.forget()
    assert records.import_file(file) == records.import_file(file) == 1
    assert records.text_of(KERNEL, HERE) == "" and [x.own for x in records.list_records()] == [False]
    assert records.export_file(file) == 0, "what was imported is not this machine's to give"


def damaged(file: Path) -> Iterator[tuple[bytes, str]]:
    whole = json.loads(file.read_bytes())
    row = whole["records"][0]

    def changed(**values: object) -> bytes:
        rows = [row | values]
        return json.dumps(whole | {"records": rows, "checksum": records.checksum(rows)}).encode()

    yield b"", "Expecting value"
    yield file.read_bytes()[:-40], "Expecting|Unterminated"
    yield b"\xff\xfe\x00", "decode|Expecting"
    yield b"[1, 2]", "another format"
    yield b"[" * 100_000, "recursion"
    yield b'{"format": "another"}', "another format"
    yield json.dumps(whole | {"number": 99}).encode(), "number 99"
    yield json.dumps({k: v for k, v in whole.items() if k != "checksum"}).encode(), "checksum"
    yield json.dumps(whole | {"records": [row | {"seconds": 5e-4}]}).encode(), "does not match its checksum"
    yield changed(seconds="fast"), "'fast' for seconds"
    yield changed(seconds=float("nan")), "nan for seconds"
    yield changed(prior=-1.0), "-1.0 for prior"
    yield changed(confirmed=1.5), "1.5 for confirmed"
    yield changed(confirmed=2**63), "9223372036854775808 for confirmed"
    yield changed(confirmed=-1), "-1 for confirmed"
    yield changed(confirmed=True), "True for confirmed"
    yield changed(at=1e300), r"1e\+300 for at"
    yield changed(kernel="../" + "0" * 29), "for kernel"
    for name, kind in records.COLUMNS.items():
        for text in ("\ud800", "\x1b]0;title\x07", "two\nlines", "\u202e") if kind is str else ():
            yield changed(**{name: text}), f"a record has {re.escape(ascii(text))} for {name}"
    yield json.dumps(whole | {"records": [1], "checksum": records.checksum([1])}).encode(), "not subscriptable"


def test_a_damaged_or_foreign_file_changes_nothing(tmp_path: Path) -> None:
    put("contraction mr=3")
    file, wrong = tmp_path / "tuned.json", tmp_path / "wrong.json"
    records.export_file(file)
    records.forget()
    for content, said in damaged(file):
        wrong.write_bytes(content)
        with pytest.raises(StoreError, match=said):
            records.import_file(wrong)
        assert records.list_records() == []
    with pytest.raises(StoreError, match="cannot be read"):
        records.import_file(tmp_path / "none.json")
    with pytest.raises(StoreError, match="cannot be written"):
        records.export_file(tmp_path / "none" / "x.json")
    assert records.import_file(file) == 1
    assert not list(tmp_path.glob(".*"))


# -- what may happen to a store


def test_a_damaged_store_is_put_aside_and_begun_anew(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    put("first")
    path = database.path_of()
    for content in (b"", b"garbage" * 1000, path.read_bytes()[:5000]):
        path.write_bytes(content)
        assert records.text_of(KERNEL, HERE) == ""
        put("second")
        assert records.text_of(KERNEL, HERE) == "second"
    err = capfd.readouterr().err
    assert err.count("is damaged") == 3 and err.count("a new one is begun") == 3
    aside = [p for p in folder.iterdir() if p.name != path.name]
    assert {p.read_bytes()[:7] for p in aside} >= {b"", b"garbage"} and all(".damaged-" in p.name for p in aside)


def test_bytes_that_change_anywhere_are_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    for n in range(1, 60):
        put(f"contraction mr={n}", product(n, 5, 7))
    path = database.path_of()
    whole, draw = path.read_bytes(), random.Random(7)
    for _ in range(40):
        content = bytearray(whole)
        start = draw.randrange(len(whole))
        content[start : start + draw.choice((1, 16, 4096))] = draw.randbytes(16)
        path.write_bytes(content)
        database._unusable.clear()
        found = records.texts_of([product(n, 5, 7) for n in range(1, 60)], HERE)
        assert all(isinstance(text, str) for text in found.values())
        similar(product(99, 5, 7), HERE)
        put("after", product(99, 5, 7))


def test_a_store_of_another_format(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    put("first")
    link = sqlite3.connect(database.path_of())
    link.execute("PRAGMA user_version=99")
    link.close()
    assert records.text_of(KERNEL, HERE) == ""
    assert "it has format 99, not 1" in capfd.readouterr().err
    (aside,) = folder.iterdir()
    assert ".damaged-" in aside.name
    put("second")
    assert [x.record.text for x in records.list_records()] == ["second"]


def test_a_store_that_is_locked_for_long(monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    clock, opened, connect = [100.0], [], sqlite3.connect
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(database, "time", SimpleNamespace(monotonic=lambda: clock[0], strftime=time.strftime))
    put("first")
    link = sqlite3.connect(database.path_of(), isolation_level=None)
    link.execute("BEGIN IMMEDIATE")
    assert records.text_of(KERNEL, HERE) == "first", "who reads waits for nobody"
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kwargs: opened.append(clock[0]) or connect(*args, **kwargs))
    for later in (0.0, 0.0, database.RETRY_SECONDS - 1, 2.0, 0.0):
        clock[0] += later
        put("second")
    assert opened == [100.0, 101.0 + database.RETRY_SECONDS], "it is left alone for a while, and then tried again"
    assert records.text_of(KERNEL, HERE) == "first" and len(opened) == 3, "who reads is not kept from it"
    assert capfd.readouterr().err.count("not kept: ") == 1
    with pytest.raises(StoreError, match="locked"):
        records.forget()
    link.execute("COMMIT")
    link.close()
    monkeypatch.setattr(database, "_unusable", {})
    put("third")
    assert records.text_of(KERNEL, HERE) == "third"


def test_a_full_disk(monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A bound of the file's pages stands for the disk."""
    put("first")
    connect = sqlite3.connect

    def full(*args, **kwargs) -> sqlite3.Connection:
        link = connect(*args, **kwargs)
        link.execute("PRAGMA max_page_count=1")  # SQLite takes as many as there are
        return link

    monkeypatch.setattr(sqlite3, "connect", full)
    put("x" * 100_000)
    put("y" * 100_000)
    assert capfd.readouterr().err.count("disk is full") == 1
    monkeypatch.setattr(sqlite3, "connect", connect)
    assert records.text_of(KERNEL, HERE) == "first"


def test_a_disk_that_is_full_from_the_beginning(folder: Path, monkeypatch, capfd) -> None:
    connect = sqlite3.connect

    def full(*args, **kwargs) -> sqlite3.Connection:
        link = connect(*args, **kwargs)
        link.execute("PRAGMA max_page_count=2")
        return link

    monkeypatch.setattr(sqlite3, "connect", full)
    put("first")
    assert "disk is full" in capfd.readouterr().err and list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written(folder: Path, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    put("first")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert records.text_of(KERNEL, HERE) == "first"
    assert [p.name for p in folder.iterdir()] == [database.path_of().name]
    put("second")
    assert "readonly" in capfd.readouterr().err
    monkeypatch.setattr(database, "_unusable", {})
    assert records.text_of(KERNEL, HERE) == "first"


def test_where_there_can_be_no_folder(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path / "file"))
    put("first")
    assert records.text_of(KERNEL, HERE) == "" and "not kept" in capfd.readouterr().err
    with pytest.raises(StoreError):
        records.import_file(exported(tmp_path, monkeypatch))


@pytest.mark.parametrize("harm", untrusted.HARMS)
def test_records_that_others_may_have_written_are_not_used(folder: Path, monkeypatch, capfd, harm: str) -> None:
    put("first")
    with untrusted.made(folder, harm) as reason:
        assert records.text_of(KERNEL, HERE) == "" and guesses(KERNEL, HERE) == []
        put("second")
        err = capfd.readouterr().err
        assert err.count("not used: ") == 1 == err.count("not kept: ") and len(re.findall(reason, err)) == 2
        for use in (records.list_records, records.forget):
            with pytest.raises(StoreError, match=reason):
                use()
    monkeypatch.setattr(database, "_unusable", {})
    assert records.text_of(KERNEL, HERE) == "first"


def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    broken = os.environ["EINSMITH_CACHE_DIR"]
    monkeypatch.setenv("EINSMITH_CACHE_DIR", str(tmp_path))
    put("first")
    records.export_file(tmp_path / "tuned.json")
    monkeypatch.setenv("EINSMITH_CACHE_DIR", broken)
    return tmp_path / "tuned.json"


# -- several processes

WRITER = """
import sys
from einsmith.tuning.kernels import database, records
from tests.kernels.samples import product
from tests.tuning.test_records import HERE, record
database.LOCK_SECONDS = 30.0
first, count = int(sys.argv[1]), int(sys.argv[2])
for n in range(first, first + count):
    kernel = product(n, 5, 7)
    records.record_choice(kernel, HERE, record(kernel, f"n={n}"))
    print(n, flush=True)
"""


def writer(first: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(first), str(count)], stdout=subprocess.PIPE, text=True)


def test_two_processes_that_write_at_once() -> None:
    """From a store that neither finds."""
    both = [writer(first, 30) for first in (1, 101)]
    assert [p.communicate(timeout=200)[1] or p.returncode for p in both] == [0, 0]
    want = {f"n={n}" for first in (1, 101) for n in range(first, first + 30)}
    assert {x.record.text for x in records.list_records()} == want


def killed(times: int) -> None:
    """A process that writes is killed at a random moment, again and again; what it had said was written is there."""
    draw, said = random.Random(3), set[str]()
    for n in range(times):
        p = writer(1 + 100 * n, 99)
        assert p.stdout is not None
        first = p.stdout.readline() if n % 3 else ""  # a third of them dies earlier, maybe while the store is made
        time.sleep(draw.random() * (0.2 if first else 1.0))
        p.send_signal(signal.SIGKILL)
        said |= {f"n={line.strip()}" for line in (first, *p.stdout) if line.strip()}
        p.wait()
        assert said <= {x.record.text for x in records.list_records()}
    assert not list(database.path_of().parent.glob("*.damaged-*"))
    put("after")
    assert records.text_of(KERNEL, HERE) == "after"


def test_processes_that_are_killed() -> None:
    killed(4)


@pytest.mark.slow
def test_many_processes_that_are_killed() -> None:
    killed(200)


def test_a_fork_while_another_thread_writes() -> None:
    """The child has a connection of its own, and no lock that is held."""
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            put("parent", product(2, 3, 4))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for n in range(5):
            child = os.fork()
            if not child:
                status = 1
                try:
                    put("child", product(50 + n, 3, 4))
                    status = int(records.text_of(product(50 + n, 3, 4), HERE) != "child")
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        done.set()
        thread.join()
    assert records.texts_of([product(50 + n, 3, 4) for n in range(5)], HERE) == {
        product(50 + n, 3, 4): "child" for n in range(5)
    }


def test_keys_of_records_find_their_sources() -> None:
    """A pattern of source files that match nothing would leave a part of the code out of every key."""
    store.sources.cache_clear()
    assert records.version() != store.version()
    with pytest.raises(ValueError, match=r"no source file of Einsmith matches nowhere/\*\*/\*\.py"):
        store.sources("kernels/*.py", "nowhere/**/*.py")
