"""Libraries in programs of C: the example, a program that uses everything, and the generated source itself."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import einsmith as es
from einsmith.base import dtypes as dt
from einsmith.export import calls, exported, header, source
from tests.export.common import WARNINGS, batch, call, compiler, small
from tests.training.test_examples import EXAMPLES, load

HERE = Path(__file__).parent
LIBRARIES = ("-lpthread", "-lm")


@pytest.fixture(autouse=True)
def _tools():
    compiler()


@pytest.mark.parametrize("name", ["lenet5", pytest.param("milstm", marks=pytest.mark.slow)])
def test_the_example_trains_as_python_does(tmp_path, name, capsys) -> None:
    """100 steps without anything of Python's: no variable of the environment is set."""
    out = tmp_path / "exported"
    losses = load("train_from_c").main(name, str(out))
    assert len(losses) == 100 and losses[-1] < losses[0] and "the library's are the same" in capsys.readouterr().out
    program = tmp_path / "train"
    flags = [*WARNINGS, "-O2", f"-I{out}", "-o", program, EXAMPLES / "train_from_c.c"]
    linked = {"object": [out / "network.o"], "shared": [f"-L{out}", "-lnetwork", f"-Wl,-rpath,{out}"]}
    for steps, how in ((20, linked["object"]), (100, linked["shared"])):
        call([compiler(), *flags, *how, *LIBRARIES])
        command = [program, out / "weights.safetensors", out / "batches", str(steps), tmp_path / "trained"]
        done = call(["env", "-i", *command], cwd="/")
        assert [float.fromhex(x) for x in done.stdout.split()] == losses[:steps]
    needed = call(["ldd", program]).stdout if shutil.which("ldd") else ""
    assert not re.search("python|llvm|stdc", needed, re.I)
    assert es.load_library(out, tmp_path / "trained").steps == 100


@pytest.mark.slow
def test_a_program_that_uses_everything(tmp_path) -> None:
    """Of the source too, with every warning on, and under the sanitizers where there are such."""
    out = es.export(small(threads=2), tmp_path / "out", *batch(), link=False)
    plain = [compiler(), *WARNINGS, "-g", "-O1", f"-I{out}", out / "small.c", out / "small_kernels.o"]
    program = tmp_path / "use"
    use = ["-std=gnu99", HERE / "use.c", "-o", program]
    call([*plain, *use, *LIBRARIES])
    call([program, out / "weights.safetensors", tmp_path / "saved"])
    (tmp_path / "empty.c").write_text("int main(void) { return 0; }\n")
    for kind in ("address,undefined", "thread"):
        sanitize = f"-fsanitize={kind}"
        try:
            call([compiler(), sanitize, tmp_path / "empty.c", "-o", tmp_path / "empty"])
            call([tmp_path / "empty"])
        except AssertionError:
            continue
        call([*plain, sanitize, "-fno-sanitize-recover=all", *use, *LIBRARIES])
        call([program, out / "weights.safetensors", tmp_path / "saved"])


def test_the_program_of_the_page_calls_an_operator(tmp_path) -> None:
    text = (HERE.parents[1] / "docs" / "export.md").read_text()
    (program,) = [b for b in re.findall(r"^```c\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "int main" in b]
    program = program.replace("    if (code)\n", '    printf("%g\\n", D[99][39]);\n    if (code)\n', 1)
    (tmp_path / "program.c").write_text(
        program.replace("int main(void) {", "int main(void) {\n    X[99][2] = 1.5f;", 1)
    )
    distance = es.op("D[i,j] = sum[k](abs(X[i,k] - Z[j,k]))", name="distance")
    folder = es.export(distance, tmp_path / "distance", np.ones((100, 3), np.float32), np.zeros((40, 3), np.float32))
    made = [
        f"-I{folder}",
        tmp_path / "program.c",
        folder / "distance.o",
        "-lpthread",
        "-lm",
        "-o",
        tmp_path / "program",
    ]
    call([compiler(), *WARNINGS, *made])
    assert call([tmp_path / "program"], cwd=tmp_path).stdout == "1.5\n"


def test_the_header_is_for_c_and_cpp(tmp_path) -> None:
    out = es.export(small(), tmp_path / "out", *batch(), link=False)
    for kind, standard in (("c", "c99"), ("c++", "c++98")):
        flags = ["-x", kind, f"-std={standard}", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
        if kind == "c++" and shutil.which("g++") is None:
            continue
        call([compiler(), *flags, out / "small.h"])


def test_names_that_c_cannot_have(tmp_path) -> None:
    def time(int, model, result, é):
        return int + model + result + é

    a = np.arange(3.0)
    es.export(time, tmp_path / "out", a, a, a, a)
    library = es.load_library(tmp_path / "out")
    names = [x["name"] for x in library.manifest["functions"][0]["arguments"]]
    assert names == ["int_2", "model_2", "result", "x_"]
    assert library.manifest["functions"][0]["results"][0]["name"] == "result_2"
    np.testing.assert_array_equal(library(a, a, a, a), 4 * a)
    assert library.name == "es_time" and sorted(p.name for p in (tmp_path / "out").iterdir())[0] == "es_time.h"
    es.export(es.exp, tmp_path / "other", a)  # a function of C has its name
    np.testing.assert_array_equal(es.load_library(tmp_path / "other")(a), es.jit(es.exp)(a))
    es.export(lambda x: x, tmp_path / "third", a)  # its name is <lambda>
    assert es.load_library(tmp_path / "third").name == "function"


def test_texts_of_c() -> None:
    assert source.quote('a "b"\n\\?é') == '"a \\042b\\042\\012\\134\\077\\303\\251"'
    assert calls.ArrayArgument("x", dt.bf16, (2, 3)).meaning == "bfloat16[2, 3], as raw bits"


def test_c_and_python_agree_on_numbers() -> None:
    """What the tables are written for is what runtime/*.c reads."""
    text = (source.RUNTIME / "machine.c").read_text()

    def names(first: str) -> list[str]:
        inside = re.search(rf"enum \{{\s*({first}\b.*?)\}}", text, re.S)[1]
        return [w.strip() for w in re.sub(r"/\*.*?\*/|=\s*\d+", "", inside, flags=re.S).split(",") if w.strip()]

    assert names("OK")[: len(header.CODES)] == list(header.CODES)
    assert names("TABLE") == [r.upper() for r in source.REGIONS] + ["TENSORS"]
    kinds = ("COUNT", "UPDATES", "SETTING", "DRAW", "WEIGHT_OF_BATCH", "BEGINS", "SAMPLES")
    assert [getattr(exported, k) for k in kinds] == list(range(7)) and len(names("COUNT")) == 7
    assert f"VIOLATED = {source.VIOLATED}" in text
