"""`docs/architecture.md` shows what the program prints, the same in every process, and names the layers there are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.docs.architecture import PATH, printed, stages, updated

ROOT = PATH.parents[1]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return dict(stages())


def test_the_page_shows_what_is_printed(made: dict[str, str]) -> None:
    found = printed(PATH.read_text())
    wrong = [f"--- {name}\n{text}\n+++\n{made.get(name)}" for name, text in found.items() if made.get(name) != text]
    assert not wrong and list(found) == list(made), (
        "docs/architecture.md differs; look why, then run python -m tests.docs --update\n" + "\n".join(wrong)
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_stages_are_the_same_in_other_processes(made: dict[str, str], seed: str) -> None:
    """Under other hashes, after other tensors, and where the machine is known as another one."""
    code = (
        "import json\nfrom dataclasses import replace\nfrom einsmith.base.dtypes import f32\n"
        "from einsmith.ir.nodes import leaf\nfrom einsmith.cost import facts\n"
        "mine = facts.host()\nfacts.host = lambda: replace(mine, vector_bytes=16, cores=7, l2=1 << 16)\n"
        f"made = [leaf((n,), f32) for n in range(3 + {seed}*100)]\n"
        "from tests.docs.architecture import stages\nprint(json.dumps(dict(stages())))"
    )
    env = {**os.environ, "PYTHONHASHSEED": seed, "EINSMITH_CALIBRATE": "0", "EINSMITH_THREADS": seed}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == made


def test_a_stage_that_differs_is_seen() -> None:
    """And printing anew repairs that stage, leaving the prose as it is."""
    page = updated(PATH.read_text())
    planted = page.replace("dA[i, k] = sum[j](", "dA[i, k] = sum[k](")
    assert [name for name, text in printed(planted).items() if text != printed(page)[name]] == ["gradients"]
    assert updated(planted) == page


def test_layers_are_those_that_are_enforced() -> None:
    text = re.search(r"```\n([a-z][^\n`]*<-[^`]*)\n```", PATH.read_text(), re.S)
    (layers,) = (
        c["layers"]
        for c in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
        if c["type"] == "layers"
    )
    assert text and [layer.split() for layer in text[1].split("<-")] == [x.split(" : ") for x in reversed(layers)]


def test_every_package_has_its_line() -> None:
    rows = re.findall(r"^\| `([\w/]+)`", PATH.read_text(), re.M)
    package = ROOT / "einsmith"
    packages = {p.parent.relative_to(package).as_posix() for p in package.glob("*/**/__init__.py")}
    assert packages == set(rows)
