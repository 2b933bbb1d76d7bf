"""What programs say of results that are never stored, and of those that need not be stored but are."""

from __future__ import annotations

import numpy as np
import pytest

import einsmith as es
import einsmith.functional as F
from einsmith.driver import compile
from einsmith.driver.executable import Executable
from einsmith.driver.streaming import lines_of, results_of
from einsmith.kernels import autoconfig
from einsmith.kernels.rows import rows_cost
from einsmith.schedule import row_clusters
from einsmith.schedule.kernel import Rows
from tests.schedule.test_reduction_chains import GAUSSIAN, LAPLACIAN, arguments, attention, compile_with
from tests.schedule.test_repeat_products import SCORES, seconds_of_products, step_of

ROWS, COLUMNS = 600, 512


def results(run: Executable) -> list[dict]:
    return results_of(run.plan, run.target, [k.decision for k in run.kernels])


def compiled(f, rng, width: int = 3) -> Executable:
    return compile_with(f, arguments(rng, ROWS, COLUMNS, width, 3), 2, 1 << 16)


def reasons(run: Executable) -> dict[str, dict]:
    return {x["type"]: x for k in results(run) for x in k["stored"]}


@pytest.fixture
def is_fused(monkeypatch) -> None:
    monkeypatch.setattr(compile, "predicted", lambda kernel, target: float(not isinstance(kernel, Rows)))


def test_results_that_are_never_stored(rng, is_fused) -> None:
    run = compiled(attention, rng)
    (k,) = (x for x in results(run) if x["unstored"])
    call = next(c for c in run.calls if isinstance(c.kernel, Rows))
    scores = {"type": f"float32[{ROWS}, {COLUMNS}]".replace("float", "f"), "bytes": 4 * ROWS * COLUMNS}
    assert scores in k["unstored"] and len(k["unstored"]) == len(call.kernel.local)
    assert k["kernels"] == len(call.parts) == len(call.kernel.members)
    assert (k["seconds"], k["apart"]) == (autoconfig.choose(call.kernel, run.target).cost.seconds, call.prices.apart)
    assert not reasons(run)
    assert run.describe().count("never stored: ") == 1 and " sweep" in run.describe()


def test_the_fraction_of_active_tiles_is_that_of_the_mask(rng, is_fused, monkeypatch) -> None:
    """Counted here tile by tile: a tile is active if its first key is not after its last query."""
    monkeypatch.setattr(rows_cost, "_SAMPLED_BLOCKS", ROWS)
    (k,) = (x for x in results(compiled(attention, rng)) if x["unstored"])
    order = k["order"]
    ((columns, tile, active),) = {(s["rows"], s["block"], s["active"]) for s in order["sweeps"]}
    assert (order["rows"], columns) == (ROWS, COLUMNS) and order["active"] is None
    lasts = [min(i + order["block"], ROWS) - 1 for i in range(0, ROWS, order["block"])]
    tiles = [j <= last for last in lasts for j in range(0, columns, tile)]
    assert active == pytest.approx(np.mean(tiles)) and active < 1
    (line,) = (x for x in lines_of(k) if x.startswith("order: "))
    counts = ", ".join(str(s["kernels"]) for s in order["sweeps"])
    blocks = f"{columns} rows, {tile} at a time, {active:.0%} of these blocks active ({counts} kernels)"
    count = len(order["sweeps"])
    sweeps = f"{count} sweep{'s' * (count > 1)} over {blocks}"
    assert line == f"order: {ROWS} rows, {order['block']} at a time: {sweeps}"


def test_without_a_mask_no_tile_is_skipped(rng, is_fused) -> None:
    (k,) = (x for x in results(compiled(es.op(GAUSSIAN), rng)) if x["unstored"])
    assert all(s["active"] is None for s in (k["order"], *k["order"]["sweeps"]))
    assert "active" not in "".join(lines_of(k))


def loop(x, y, b):
    """Return a recurrence over the rows of the distances."""
    s = es.op("s[i,j] = sum[d]((x[i,d]-y[j,d])**2)")(x, y)
    return es.op("h[t,j] = where(t > 0, 0.5*h[t-1,j], 0.0) + s[t,j]")(s), s.sum(1)


SCORE_TYPE = f"f32[{ROWS}, {COLUMNS}]"
REFUSED = {
    "slower": (es.op(LAPLACIAN), 3, {}, "storing it is predicted to be faster"),
    "short rows": (es.op(LAPLACIAN), 200, {}, "its rows are short, so that it takes less than twice the memory"),
    "members": (es.op(LAPLACIAN), 3, {"MAX_MEMBERS": 1}, "2 kernels would have to be fused, and at most 1 can be"),
    "no rows": (
        es.op(LAPLACIAN), 3, {"rows_of": lambda part: frozenset()}, "that needs it cannot run row by row",
    ),
    "apart": (es.op(LAPLACIAN), 3, {"can_share_rows": lambda *_: False}, "cannot be joined row by row"),
    "loop": (loop, 3, {}, "a check, an update or a loop needs it"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_for_which_a_result_is_stored(name: str, rng, monkeypatch) -> None:
    f, width, replaced, reason = REFUSED[name]
    monkeypatch.setattr(compile, "predicted", lambda kernel, target: 5.0 if isinstance(kernel, Rows) else 1.0)
    for attribute, value in replaced.items():
        monkeypatch.setattr(row_clusters, attribute, value)
    run = compiled(f, rng, width)
    stored = reasons(run)
    assert list(stored) == [SCORE_TYPE] and reason in stored[SCORE_TYPE]["reason"]
    assert stored[SCORE_TYPE]["bytes"] == 4 * ROWS * COLUMNS
    times = (5.0, 2.0) if name == "slower" else (None, None)
    assert (stored[SCORE_TYPE]["streamed"], stored[SCORE_TYPE]["stored"]) == times
    (line,) = (line for line in run.describe().splitlines() if "  stored: " in line)
    assert f"{SCORE_TYPE} 1.229 MB: " in line and reason in line
    assert line.endswith("(5000000.0 us, with it 2000000.0 us)") == (name == "slower")


def test_small_results_and_single_products_need_no_reason(rng, monkeypatch) -> None:
    """They could not be used up; nor does a program say anything of a product's result that is not read again."""
    monkeypatch.setattr(compile, "predicted", lambda kernel, target: 5.0 if isinstance(kernel, Rows) else 1.0)
    assert not reasons(compile_with(es.op(LAPLACIAN), arguments(rng, ROWS, COLUMNS, 3, 3), 2, 1 << 30))
    assert not reasons(compiled(lambda x, y, b: F.exp(x @ y.transpose(1, 0)) + 0 * b.sum(), rng))


@pytest.mark.parametrize("ratio", [0.94, 2.0])
def test_the_reason_for_which_scores_are_kept_for_the_backward_pass(ratio: float, rng, monkeypatch) -> None:
    """A step that computes them again takes seven products of 0.94 seconds in place of six; or each fused kernel takes
    more time than its products."""
    monkeypatch.setattr(compile, "predicted", seconds_of_products(ratio))
    batch = [rng.standard_normal((2, 512, 16), np.float32) for _ in range(2)]
    step = step_of().compile(*batch)
    (run,) = step.compiler.programs.values()
    found = [x for k in results(run) for x in k["stored"] if x["bytes"] == SCORES]
    assert found and "  stored: " in str(step.plan)
    assert found[0]["streamed"] > found[0]["stored"] > 0
    if ratio < 1:
        assert found[0]["reason"] == "a step that computes it again for the backward pass is predicted to be slower"
    else:
        assert found[0]["reason"] == "computed again for the backward pass: storing it is predicted to be faster"
    step.max_stored = 0
    step.compile(*batch)
    (run,) = step.compiler.programs.values()
    never = [x["bytes"] for k in results(run) for x in k["unstored"]]
    assert SCORES in never


def test_a_pointwise_kernel_between_two_reductions_belongs_to_the_chain(rng, monkeypatch) -> None:
    """The mask of the scores is one; without it the scores would be read by no reduction."""
    monkeypatch.setattr(compile, "predicted", lambda kernel, target: 1.0)
    run = compiled(attention, rng, 200)
    assert "its rows are short" in reasons(run)[SCORE_TYPE]["reason"]
