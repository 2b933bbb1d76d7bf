"""The notebooks run in a kernel, at small sizes; progress is shown there, and an interrupt loses nothing."""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.training.small_bert import WORDS, write_bert

jupytext = pytest.importorskip("jupytext", reason="notebooks are read by jupytext")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient")
pytest.importorskip("ipykernel", reason="notebooks need a kernel")
NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let kernels find this checkout, and keep what they write."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path


def run(name: str, folder: Path, parameters: str) -> Any:
    """Run a notebook in a folder with the cell of its parameters replaced; return it with outputs."""
    notebook = jupytext.read(NOTEBOOKS / name)
    (cell,) = (c for c in notebook.cells if "parameters" in c.metadata.get("tags", ()))
    cell.source = parameters
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def shown(notebook: Any) -> str:
    """Return all that the outputs show, as HTML where they have it."""
    data = (o.get("data", {}) for c in notebook.cells if c.cell_type == "code" for o in c.outputs)
    return "\n".join(d.get("text/html") or d.get("text/plain", "") for d in data)


@pytest.mark.slow
def test_a_new_attention(place: Path) -> None:
    page = shown(run("attention.py", place, "SAMPLES, EPOCHS = 512, 2"))
    assert "<th" in page and "3: d" in page  # the table of indices
    assert page.count("<svg ") >= 2 and "backward" in page  # plans
    assert "dq from " in page and "Recall, " in page
    assert "epoch 2/2 &nbsp; loss " in page  # where the bar was, the epoch's results


@pytest.mark.slow
def test_a_cell_of_ones_own(place: Path) -> None:
    page = shown(run("cell.py", place, "SAMPLES, EPOCHS = 256, 2"))
    assert "h[t-1, b, k]" in page.replace("h[t-1,b,k]", "h[t-1, b, k]") and "epoch 2/2" in page


@pytest.mark.slow
def test_fine_tuning(place: Path, rng) -> None:
    write_bert(place, rng)
    texts = [str(place / name) for name in WORDS]
    page = shown(run("bert.py", place, f"FOLDER, TEXTS = {str(place)!r}, {texts}\nCOUNT, EPOCHS, RATE = 24, 4, 5e-3"))
    assert "Classifier, " in page and "frozen" in page and "epoch 4/4" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(p.name for p in NOTEBOOKS.glob("*.py")))
def test_notebooks_learn_what_they_say(place: Path, name: str) -> None:
    """At their own sizes; MiniLM and the texts are fetched."""
    results = {"attention.py": "accuracy > 0.95", "cell.py": "error < 0.02", "bert.py": "after > max(0.9, before)"}
    notebook = jupytext.read(NOTEBOOKS / name)
    notebook.cells.append(type(notebook.cells[0])(cell_type="code", source=f"assert {results[name]}", metadata={}))
    notebook.cells[-1].update(outputs=[], execution_count=None)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(place)}}).execute()


SETUP = """
import numpy as np, einsmith as es
def fresh():
    es.manual_seed(0)
    L = es.nn.Linear
    net = es.nn.Sequential(L(64, 512), es.nn.Tanh(), L(512, 512), es.nn.Tanh(), L(512, 4))
    return es.TrainStep(net, es.functional.cross_entropy, es.optim.Adam(lr=1e-3))
rng = np.random.default_rng(0)
x, y = rng.standard_normal((2048, 64)).astype(np.float32), rng.integers(0, 4, 2048)
"""
TRAIN = """
count = step.steps
while True:
    step(x, y)
    if step.steps == count + 3: print("trains", flush=True)
"""
FIT = """
count = step.steps
def tell(*_):
    if step.steps == count + 3: print("trains", flush=True)
step.fit(es.data.batches(x, y, 256, seed=0), epochs=10**6, on_step=tell)
"""
CHECK = """
again, count = fresh(), step.steps
{train}
assert again.steps == count > 0
for name, value in again.model.state_dict().items():
    assert np.array_equal(value, step.model.state_dict()[name]), name
assert np.isfinite(step(x, y)) and step.steps == count + 1
step.plan, step.evaluate([(x, y)])
"""
ALONE = "for _ in range(count): again(x, y)"
EPOCHS = """
def enough(*_):
    if again.steps == count: raise KeyboardInterrupt
try: again.fit(es.data.batches(x, y, 256, seed=0), epochs=10**6, progress=False, on_step=enough)
except KeyboardInterrupt: pass
"""


@pytest.mark.slow
def test_an_interrupt_leaves_the_step_as_after_its_last_update(place: Path) -> None:
    """The kernel is interrupted while it trains; the weights then equal those of as many steps without interruption."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", cwd=str(place))
    try:
        execute(client, SETUP)
        for train, check in ((TRAIN, ALONE), (FIT, EPOCHS)):
            execute(client, "step = fresh()")
            for _ in range(2):
                client.execute(train)
                while True:
                    message = client.get_iopub_msg(timeout=60)
                    if message["msg_type"] == "stream" and "trains" in message["content"]["text"]:
                        break
                time.sleep(0.3)  # until what was printed is sent
                reply = interrupt(manager, client)
                assert reply["content"]["status"] == "error" and reply["content"]["ename"] == "KeyboardInterrupt"
            execute(client, CHECK.format(train=check))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def interrupt(manager: Any, client: Any) -> Any:
    """Interrupt a kernel and return its reply. A kernel may miss an interrupt while it sends output; then again."""
    for _ in range(5):
        manager.interrupt_kernel()
        try:
            return client.get_shell_msg(timeout=20)
        except queue.Empty:
            continue
    raise AssertionError("the kernel goes on")


def execute(client: Any, code: str) -> None:
    reply = client.execute_interactive(code, timeout=120, allow_stdin=False, store_history=False)
    assert reply["content"]["status"] == "ok", "\n".join(reply["content"].get("traceback", ()))
