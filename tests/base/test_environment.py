"""Environment variables: values that cannot be, and names that nothing reads, are said."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import einsmith as es
from einsmith.base import environment


def test_names_that_nothing_reads_are_said() -> None:
    with pytest.warns(es.EinsmithWarning) as told:
        environment.warn_unknown(["EINSMITH_THREAD", "PATH", "EINSMITH_", *(k.name for k in environment.ALL)])
    texts = [str(w.message) for w in told]
    assert len(texts) == 2 and "did you mean EINSMITH_THREADS?" in texts[1]
    assert all(k.name in texts[0] for k in environment.ALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment.warn_unknown([k.name for k in environment.ALL])


def test_the_first_use_says_them_once() -> None:
    variables = os.environ | {"EINSMITH_TUNE": "0"}
    code = [sys.executable, "-c", "import einsmith as es; es.jit; es.nn"]
    done = subprocess.run(code, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr.count("Einsmith reads no environment variable EINSMITH_TUNE") == 1
    assert "did you mean EINSMITH_TUNED?" in done.stderr


@pytest.mark.parametrize("load", [es.data.mnist, lambda: es.data.text("sotu"), es.data.cifar10, es.data.fashion_mnist])
def test_a_folder_of_data_that_is_not_there_is_refused(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a look elsewhere, or a fetch."""
    (tmp_path / "file").write_text("")
    for place in ("none", "file"):
        monkeypatch.setenv("EINSMITH_DATA_DIR", str(tmp_path / place))
        with pytest.raises(es.KnobError, match=f"EINSMITH_DATA_DIR is '.*{place}', but .*a directory that exists"):
            load()
