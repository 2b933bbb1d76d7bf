"""The C of the native run time under sanitizers, with kernels of C on several threads (native_driver.c)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from einsmith.codegen.entry import entry_program
from tests.codegen import native_texts

DRIVER = Path(__file__).with_name("native_driver.c")
COMPILERS = [c for c in ("cc", "gcc", "clang") if shutil.which(c)]


@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
def test_the_run_time_is_clean(kind, tmp_path) -> None:
    options = [f"-fsanitize={kind}", "-fno-sanitize-recover=all", "-std=gnu11", "-O1", "-g", "-pthread"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")

    def builds(compiler: str) -> bool:
        done = subprocess.run([compiler, *options, probe, "-o", tmp_path / "probe"], capture_output=True)
        return not done.returncode and not subprocess.run([tmp_path / "probe"], capture_output=True).returncode

    compiler = next(filter(builds, COMPILERS), None)
    if compiler is None:
        pytest.skip(f"no C compiler here has -fsanitize={kind}")
    command = [
        compiler,
        *options,
        *native_texts.DEFINITIONS,
        f"-I{entry_program.HERE}",
        DRIVER,
        entry_program.HERE / "entry.c",
        "-o",
        tmp_path / "driver",
    ]
    subprocess.run(command, check=True, capture_output=True)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([tmp_path / "driver"], capture_output=True, text=True, timeout=30, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
