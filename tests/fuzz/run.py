"""The runner: worker processes, restarted where they crash or hang; finds, which are made smaller; a report."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from einsmith.checking.shrink import shrink
from tests.fuzz.coverage import Coverage

FIRST_LINE = 60.0
"""Seconds beside its time that a process may take for its first answer: it imports."""
HERE = Path(__file__).resolve().parent


class Worker:
    """A process that checks cases (see `worker`). It is started when it is asked, and anew after it has ended."""

    def __init__(self, folder: Path, name: str, limit: float, checkout: str = "", setup: str = "", life: int = 400):
        self.folder, self.name, self.limit, self.life = folder, name, limit, life
        self.command = [sys.executable, "-P", str(HERE / "worker.py"), str(folder / f"{name}.txt"), checkout, setup]
        self.process: subprocess.Popen | None = None
        self.starts = 0
        self.asked = 0

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """The answer to a job; {"died": why, "announced": what was under way} where there is none."""
        if self.process is None:
            self._start()
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        self.asked += 1
        try:
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            line = self._line(process, self.limit + (FIRST_LINE if self.asked == 1 else 0))
        except BrokenPipeError:
            line = b""
        if line is None:
            self.close()
            return {"died": f"no answer within {self.limit:.0f} s", "kind": "hang", "announced": self._announced()}
        if not line:
            status = process.wait()
            self.close()
            tail = (self.folder / f"{self.name}.err").read_text(errors="replace")[-3000:]
            return {"died": f"exit status {status}", "kind": "crash", "announced": self._announced(), "tail": tail}
        if self.asked >= self.life:
            self.close()
        return json.loads(line)

    def _start(self) -> None:
        self.starts, self.asked, self._rest = self.starts + 1, 0, b""
        environment = {
            **os.environ, "EINSMITH_CALIBRATE": "0", "EINSMITH_CACHE_DIR": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
        }  # fmt: skip
        errors = (self.folder / f"{self.name}.err").open("wb")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=self.folder
        )
        errors.close()

    def _line(self, process: subprocess.Popen, seconds: float) -> bytes | None:
        """A line of the process, b"" where it has ended, None where it takes longer."""
        assert process.stdout is not None
        end, out = time.monotonic() + seconds, process.stdout.fileno()
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                return None
            data = os.read(out, 1 << 20)
            if not data:
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _announced(self) -> str:
        try:
            return (self.folder / f"{self.name}.txt").read_text()
        except OSError:
            return ""

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        pass


@dataclass
class Find:
    """What was found first of its kind, and how often it was met."""

    number: int
    theme: str
    kind: str
    what: str
    message: str
    case: str
    test: str
    second: float
    times: int = 1
    others: list[int] = field(default_factory=list)


@dataclass
class Settings:
    seed: str = "0"
    minutes: float = 1.0
    cases: int | None = None
    """Comparisons after which the run ends."""
    jobs: int = 1
    limit: float = 60.0
    """Seconds that a session may take."""
    shrinking: float = 60.0
    """Seconds that a find may be made smaller for."""
    steer: bool = True
    checkout: str = ""
    setup: str = ""
    themes: tuple[str, ...] = ()
    finds: int | None = None
    """Different finds after which the run ends."""
    life: int = 400
    first: int = 0


class Run:
    """Cases from a seed, checked by workers until the time, the cases or the finds that were asked for are reached."""

    def __init__(self, settings: Settings, say: Callable[[str], None] = print):
        from tests.fuzz.session import NAMES, theme_of

        self.settings, self.say = settings, say
        self.names, self.theme_of = [n for n in NAMES if n in (settings.themes or NAMES)], theme_of
        self.period = NAMES
        self.random = Random(settings.seed)
        self.coverage = Coverage()
        self.finds: dict[str, Find] = {}
        self.whats: Counter[str] = Counter()
        self.themes: Counter[str] = Counter()
        self.compared = self.sessions = self.kernels = self.unfit = 0
        self.busy = 0.0
        self.gains: dict[str, deque[float]] = {n: deque([2.0] * 3, maxlen=40) for n in self.names}
        self.next = {n: settings.first for n in self.names}
        self.lock = threading.Lock()
        self.start = time.monotonic()
        self.over = threading.Event()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def number(self) -> int:
        """The next case's: of a theme in turn, or of one whose last cases have reached much that was new."""
        names = self.names
        if self.settings.steer and self.sessions > 20 * len(names) and self.random.random() < 0.6:
            weights = [0.1 + sum(self.gains[n]) / len(self.gains[n]) for n in names]
            theme = self.random.choices(names, weights)[0]
        else:
            theme = min(names, key=lambda n: (self.next[n], names.index(n)))
        self.next[theme] += 1
        return (self.next[theme] - 1) * len(self.period) + self.period.index(theme)

    def run(self) -> None:
        """Raises nothing for what the code under test does; `finds` has it."""
        with tempfile.TemporaryDirectory(prefix="einsmith-fuzz-", dir=_fast_folder(), ignore_cleanup_errors=True) as d:
            threads = [threading.Thread(target=self._work, args=(Path(d), f"worker{n}"), daemon=True)
                       for n in range(self.settings.jobs)]  # fmt: skip
            for t in threads:
                t.start()
            try:
                while any(t.is_alive() for t in threads):
                    time.sleep(0.2)
                    self.tick()
            finally:
                self.over.set()
                for t in threads:
                    t.join(timeout=self.settings.limit + 5)

    def tick(self) -> None:
        s = self.settings
        if (
            self.seconds > s.minutes * 60
            or (s.cases is not None and self.compared >= s.cases)
            or (s.finds is not None and len(self.finds) >= s.finds)
        ):
            self.over.set()

    def _work(self, folder: Path, name: str) -> None:
        s = self.settings
        worker = Worker(folder, name, s.limit, s.checkout, s.setup, s.life)
        try:
            while not self.over.is_set():
                with self.lock:
                    number = self.number()
                    job: dict[str, Any] = {"seed": s.seed, "number": number}
                    if worker.process is None:
                        job["reached"] = list(self.coverage.reached)
                began = time.monotonic()
                answer = worker.ask(job)
                with self.lock:
                    self.busy += time.monotonic() - began
                    self.sessions += 1
                    theme = self.theme_of(number)
                    self._count(theme, answer)
                self._note(number, theme, answer, worker)
        finally:
            worker.close()

    def _count(self, theme: str, answer: dict[str, Any]) -> None:
        self.themes[theme] += 1
        new = self.coverage.add(answer.get("cells", ()), answer.get("offered", ()))
        self.gains[theme].append(new / (0.05 + answer.get("seconds", 1.0)) ** 0.5)
        self.compared += answer.get("compared", 1)
        self.kernels += answer.get("kernels", 0)
        self.unfit += answer.get("unfit", 0)
        self.whats.update(answer.get("whats", {}))

    # --------------------------------------------------------------------------------------------------------- finds

    def _note(self, number: int, theme: str, answer: dict[str, Any], worker: Worker) -> None:
        if "died" in answer:
            case, _, test = answer["announced"].partition("\nimport textwrap")
            found = {"kind": answer["kind"], "what": "", "message": answer["died"] + "\n" + answer.get("tail", ""),
                     "case": case, "test": "import textwrap" + test}  # fmt: skip
        elif answer["find"] is None:
            return
        else:
            found = answer["find"]
        key = signature(found, theme)
        with self.lock:
            if key in self.finds:
                self.finds[key].times += 1
                self.finds[key].others.append(number)
                return
            find = self.finds[key] = Find(number, theme, found["kind"], found["what"], found["message"], found["case"],
                                          found["test"], self.seconds)  # fmt: skip
        self.say(f"find {len(self.finds)} after {self.seconds:.0f} s: case {number} of seed {self.settings.seed} "
                 f"({theme}, {found['what']}): {found['kind']}: {found['message'].splitlines()[0][:160]}")  # fmt: skip
        if "check" in found and self.settings.shrinking:
            smaller = self._shrunk(theme, answer["taken"], found, worker)
            find.case, find.test, find.message = smaller["case"], smaller["test"], smaller["message"]
        self.say(f"case {number} of seed {self.settings.seed}\n{find.message}\n{find.case}\n{find.test}")

    def _shrunk(self, theme: str, taken: list[int], found: dict[str, Any], worker: Worker) -> dict[str, Any]:
        """The find in its smallest form."""
        best, check = found, found["check"]
        key = signature(found, theme)

        def tried(given: list[int], check: dict[str, Any]) -> tuple[list[int], dict[str, Any]] | None:
            answer = worker.ask({"theme": theme, "given": given, "check": check})
            other = answer.get("find")
            return (answer["taken"], other) if other is not None and signature(other, theme) == key else None

        for forced in check.get("forced", ()):
            alone = tried(taken, {**check, "forced": [forced]})
            if alone is not None:
                check, best = alone[1]["check"], alone[1]
                break

        def fails(given: list[int]) -> list[int] | None:
            nonlocal best
            again = tried(given, check)
            if again is None:
                return None
            best = again[1]
            return again[0]

        shrink(taken, fails, self.settings.shrinking)
        return best

    # -------------------------------------------------------------------------------------------------------- report

    def report(self) -> dict[str, Any]:
        rate = self.compared / max(self.busy, 1e-9)
        return {
            "seed": self.settings.seed, "seconds": round(self.seconds, 1), "cases": self.compared,
            "sessions": self.sessions, "kernels": self.kernels, "unfit": self.unfit,
            "cases_per_second_and_job": round(rate, 2), "checks": dict(self.whats), "themes": dict(self.themes),
            "coverage": self.coverage.report(), "finds": [vars(f) for f in self.finds.values()],
        }  # fmt: skip

    def line(self) -> str:
        return (
            f"{self.seconds:6.0f} s  {self.compared} cases of {self.sessions} formulas, {self.kernels} kernels, "
            f"{len(self.coverage.reached)} of {len(self.coverage.known)} cells, {len(self.finds)} finds "
            f"({sum(f.times for f in self.finds.values())} times)"
        )


def signature(found: dict[str, Any], theme: str) -> str:
    """What two finds have in common that are taken for one: numbers, names of axes and values do not count."""
    text = found["message"].splitlines()[0] if found["message"] else ""
    text = re.sub(r"'[^']*'|\[[^\]]*\]|\([^)]*\)|-?\d[\d.e+-]*|\b[aTXNBpyx]\b|np\.\w+|nan|inf", "#", text)
    group = theme if found["kind"] in ("wrong", "crash", "hang", "slow") else ""
    return "/".join((found["kind"], found["what"], group, text[:70]))


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def finds_of(numbers: Iterable[int], seed: str = "0", **settings: Any) -> list[Find]:
    """What the cases of these numbers find: for tests."""
    wanted = list(numbers)
    run = Run(Settings(seed=seed, minutes=60, **settings), say=lambda text: None)
    left = iter(wanted)

    def number() -> int:
        n = next(left, None)
        if n is None:
            run.over.set()
            return wanted[-1]
        return n

    run.number = number  # type: ignore[method-assign]
    run.run()
    return list(run.finds.values())
