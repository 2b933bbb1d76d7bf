"""A strict reader of Chrome trace events: what the format and Perfetto ask of the phases that we write."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
REQUIRED = {"M": {"name", "pid", "tid", "args"}, "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
            "C": {"name", "ts", "pid", "args"}}  # fmt: skip


def _number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def read_trace(file: Path | str) -> dict[str, Any]:
    """Return the content of a trace. Raises AssertionError for what the format does not allow."""
    text = file if isinstance(file, str) else file.read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(text, parse_constant=refuse)
    check_trace(data)
    return data


def check_trace(data: dict[str, Any]) -> None:
    assert set(data) == {"traceEvents", "displayTimeUnit", "otherData"} and data["displayTimeUnit"] in ("ms", "ns")
    named: dict[tuple[int, int], str] = {}
    spans: dict[tuple[int, int], list[dict]] = defaultdict(list)
    series: dict[tuple[int, str], set[str]] = {}
    last = 0.0
    for e in data["traceEvents"]:
        phase = e.get("ph")
        assert phase in REQUIRED, f"phase {phase!r}"
        assert set(e) == REQUIRED[phase] | {"ph"}, f"fields of {e}"
        assert isinstance(e["name"], str) and e["name"] and isinstance(e["pid"], int) and isinstance(e["args"], dict)
        if phase == "M":
            field, kind = METADATA[e["name"]]
            assert set(e["args"]) == {field} and isinstance(e["args"][field], kind), e
            if e["name"] == "thread_name":
                assert (e["pid"], e["tid"]) not in named, f"row {e['tid']} is named twice"
                named[e["pid"], e["tid"]] = e["args"]["name"]
            continue
        assert _number(e["ts"]) and e["ts"] >= last, f"{e['name']} begins before the event before it"
        last = e["ts"]
        if phase == "C":
            assert e["args"] and all(map(_number, e["args"].values())), f"a counter is numbers: {e}"
            kinds = series.setdefault((e["pid"], e["name"]), set(e["args"]))
            assert kinds == set(e["args"]), f"{e['name']} changes its series"
        else:
            assert _number(e["dur"]) and e["dur"] >= 0 and isinstance(e["tid"], int) and e["cat"], e
            spans[e["pid"], e["tid"]].append(e)
    for row, events in spans.items():
        assert row in named, f"row {row} has no name"
        around: list[float] = []
        for e in events:
            end = e["ts"] + e["dur"]
            while around and around[-1] <= e["ts"] + 1e-6:
                around.pop()
            assert not around or end <= around[-1] + 1e-6, f"{e['name']} ends after the span around it"
            around.append(end)


def spans_of(data: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    """Return the spans that have these fields."""
    return [e for e in data["traceEvents"] if e["ph"] == "X" and all(e[k] == v for k, v in fields.items())]


def counters_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in data["traceEvents"] if e["ph"] == "C"]
