"""The ceilings of `budgets.toml` are read, can be exceeded, and fall with what leaves."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.lint import __main__ as program
from tests.lint import budget
from tests.lint.measure import bound_names, count_code_lines, is_empty_name, measure

MODULE = '''"""A module."""
import os
from a import (
    b,
    c,
)

# A comment.
class Reader:
    """A reader."""

    def first(self, given, *, axes):
        """Read."""
        found_axes = [x for x in axes]
        return found_axes

    def second(self):
        self.made = """Text
        that is no docstring."""
'''
BUDGET = """# How.
[total]
einsmith = 20

[packages]
lang = 12  # a reason
cli = 9

[files]
"lang/reader.py" = 540
[functions]
"lang/reader.py Reader.first" = 100
"""


def write(root: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_sizes_are_measured(tmp_path: Path) -> None:
    sizes = measure(write(tmp_path, lang__reader=MODULE, single="x = 1\n"))
    assert count_code_lines(MODULE, ast.parse(MODULE)) == 7
    assert sizes["total"] == {"einsmith": 8}
    assert sizes["packages"] == {"lang": 7, "(top)": 1}
    assert sizes["files"] == {"lang/reader.py": 19, "single.py": 1}
    assert sizes["functions"] == {"lang/reader.py Reader.first": 4, "lang/reader.py Reader.second": 3}
    assert sizes["classes"] == {"lang/reader.py Reader": 2}
    assert sizes["names"] == {"lang": 3}


def test_empty_names_are_seen_where_they_are_bound() -> None:
    tree = ast.parse(MODULE)
    assert [name for _, name in bound_names(tree) if is_empty_name(name)] == ["given", "found_axes", "made"]
    assert all(map(is_empty_name, ["is_told", "_Made", "GivenSlots", "FOUND", "made_by"]))
    assert not any(map(is_empty_name, ["foundation", "profound", "givens", "maker", "untold"]))


@pytest.mark.parametrize(
    "table, entry, size",
    [
        ("total", "einsmith", 21),
        ("packages", "lang", 13),
        ("packages", "new", 1),
        ("files", "lang/reader.py", 541),
        ("files", "lang/writer.py", 501),
        ("functions", "lang/reader.py Reader.first", 101),
        ("functions", "lang/reader.py Reader.second", 81),
        ("classes", "lang/reader.py Reader", 26),
        ("names", "lang", 1),
    ],
)
def test_a_size_above_its_ceiling_fails(tmp_path: Path, table: str, entry: str, size: int) -> None:
    (tmp_path / "budgets.toml").write_text(BUDGET)
    ceilings = budget.read(tmp_path / "budgets.toml")
    assert not list(budget.find_excess({table: {entry: size - 1}}, ceilings))
    (message,) = budget.find_excess({table: {entry: size}}, ceilings)
    assert message.startswith(f"[{table}] {entry}: {size} ")


def test_only_ceilings_far_above_what_is_there_fail() -> None:
    ceilings = {"packages": {"a": 5000, "b": 100, "gone": 10}, "files": {"x.py": 600}}
    near = {"packages": {"a": 4850, "b": 50, "gone": 1}, "files": {"x.py": 550}}
    assert not list(budget.find_slack(near, ceilings))
    far = {"packages": {"a": 4849, "b": 49}, "files": {"x.py": 500}}
    assert [message.split(":")[0] for message in budget.find_slack(far, ceilings)] == [
        "[packages] a",
        "[packages] b",
        "[packages] gone",
        "[files] x.py",
    ]


def test_ceilings_fall_and_never_rise() -> None:
    sizes = {
        "total": {"einsmith": 25},
        "packages": {"lang": 11},
        "files": {"lang/reader.py": 510},
        "functions": {"lang/reader.py Reader.first": 80},
    }
    text = budget.lower(BUDGET, sizes)
    assert text.splitlines() == [
        "# How.",
        "[total]",
        "einsmith = 20",
        "",
        "[packages]",
        "lang = 11  # a reason",
        "",
        "[files]",
        '"lang/reader.py" = 510',
        "[functions]",
    ]
    assert budget.lower(text, sizes) == text


def test_the_program_fails_and_lowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(program, "PACKAGE", write(tmp_path / "package", lang__reader=MODULE))
    monkeypatch.setattr(program, "BUDGETS", tmp_path / "budgets.toml")
    full = "[total]\neinsmith = 7\n[packages]\nlang = 7\n[names]\nlang = 3\n"
    for text, status, said in [
        (full, 0, ""),
        (full.replace("lang = 7", "lang = 6"), 1, "[packages] lang: 7 lines of code, 6 allowed"),
        (full.replace("lang = 7", "lang = 58"), 1, "[packages] lang: 7 lines of code, the ceiling is still 58"),
        (full.replace("lang = 3", "lang = 2"), 1, "[names] lang: 3 names"),
    ]:
        program.BUDGETS.write_text(text)
        monkeypatch.setattr("sys.argv", ["lint"])
        assert program.main() == status
        output = capsys.readouterr().out
        assert said in output if said else not output
    program.BUDGETS.write_text(full.replace("7", "700"))
    monkeypatch.setattr("sys.argv", ["lint", "--lower"])
    assert program.main() == 0
    assert program.BUDGETS.read_text() == full
    monkeypatch.setattr("sys.argv", ["lint", "--names", "lang"])
    assert program.main() == 0
    assert "einsmith/lang/reader.py:14: found_axes" in capsys.readouterr().out


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text("[modules]\nx = 1\n")
    with pytest.raises(ValueError, match="unknown tables modules"):
        budget.read(tmp_path / "budgets.toml")


def test_the_ceilings_of_this_checkout_can_be_read() -> None:
    assert set(budget.read(program.BUDGETS)) == set(budget.TABLES)
