"""Documents for fine-tuning, and the rows that they are arranged in."""

import json

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, DataError
from einsmith.data.packing import _pack


def encode(text: str, begins: bool) -> list[int]:
    """Each letter by its code; 1 begins a document."""
    return [1] * begins + [ord(c) for c in text]


def write(path, *rows):
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return path


def read(path, **options):
    return es.data.documents(path, 200, encode, 2, **options)


def test_rows_of_every_kind(tmp_path):
    file = write(
        tmp_path / "a.jsonl", {"text": "ab", "id": 7}, "\n", {"prompt": "c", "completion": "de"}, {"tokens": [3, 4, 5]},
        {"input_ids": [6, 7]},
    )  # fmt: skip
    got = [(d.tokens.tolist(), d.prompt) for d in read(file)]
    assert got == [([1, 97, 98, 2], 0), ([1, 99, 100, 101, 2], 2), ([3, 4, 5], 0), ([6, 7], 0)]


def test_texts_are_one_document_or_divided_by_blank_lines(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("a\nb\n \n\n\nc\n", encoding="utf-8-sig")
    assert [d.tokens.tolist() for d in read(file)] == [encode("a\nb\n \n\n\nc\n", True) + [2]]
    assert [d.tokens.tolist() for d in read(file, is_divided=True)] == [encode(t, True) + [2] for t in ("a\nb", "c\n")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{'text': 3}\n", "line 2: it is not JSON"),
        ([1], "line 2: it is .*not an object"),
        ({"text": 3}, "line 2: the field 'text' is 3, not a text"),
        ({"text": ""}, "line 2: the field 'text' is empty"),
        ({"prompt": "a"}, "line 2: the field 'completion' is missing"),
        ({"prompt": "a", "completion": ["b"]}, "line 2: the field 'completion' is"),
        ({"prompt": "a", "completion": ""}, "line 2: the field 'completion' is empty"),
        ({"text": "a", "tokens": [1]}, "line 2: a row has the fields .*it has 'text', 'tokens'"),
        ({"messages": []}, "line 2: a row has the fields .*it has 'messages'"),
        ({"tokens": [1, 2, 200]}, "line 2: token 200 at place 2 is beyond the model's vocabulary.* 0 to 199"),
        ({"tokens": [1, -1]}, "line 2: token -1 at place 1"),
        ({"tokens": [1, 2.0]}, "line 2: the field 'tokens' must be a list of whole numbers; it has 2.0"),
        ({"tokens": "abc"}, "line 2: the field 'tokens' must be a list"),
        ({"tokens": [True, 1]}, "line 2: the field 'tokens' must be a list of whole numbers; it has True"),
        ({"tokens": [5]}, "line 2: it has 1 token"),
        ({"text": "ÿ"}, "line 2: token 255 at place 1"),
    ],
)
def test_wrong_rows_are_named(tmp_path, row, message):
    file = write(tmp_path / "a.jsonl", {"text": "fine"}, row)
    with pytest.raises(DataError, match=f"{file}, {message}"):
        read(file)


def test_wrong_files_are_named(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="ends in"):
        read(write(tmp_path / "a.csv", "x"))
    with pytest.raises(DataError, match="no documents"):
        read(write(tmp_path / "a.jsonl", "\n"))
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(DataError, match="line 2: it is not UTF-8"):
        read(tmp_path / "b.jsonl")
    with pytest.raises(DataError, match="line 1: texts need a tokenizer"):
        es.data.documents(write(tmp_path / "c.jsonl", {"text": "a"}), 200)


def documents(*lengths):
    """Documents whose tokens are all different."""
    ends = np.cumsum([0, *lengths])
    return [es.data.Document(np.arange(a, b, dtype=np.int32)) for a, b in zip(ends[:-1], ends[1:], strict=True)]


@pytest.mark.parametrize("length", [1, 2, 7, 16, 17])
@pytest.mark.parametrize("is_packed", [False, True])
def test_each_token_is_learned_once_from_those_before_it(length, is_packed, rng):
    given = documents(*rng.integers(2, 40, 30))
    rows = es.data.rows(given, length, 4, 3, is_packed=is_packed)
    learned = []
    for batch in rows.epoch(0):
        assert all(a.shape[0] == 4 and a.dtype == np.int32 for a in batch)
        tokens, targets = batch[0], batch[-1]
        on = targets != -100
        np.testing.assert_array_equal(targets[on], tokens[on] + 1)
        learned += targets[on].tolist()
        if is_packed:
            positions, segments = batch[1:3]
            for t, p, s in zip(tokens[on.any(1)], positions[on.any(1)], segments[on.any(1)], strict=True):
                for n in np.unique(s):
                    np.testing.assert_array_equal(p[s == n], np.arange((s == n).sum()))
                    assert (np.diff(t[s == n]) == 1).all() or (t[s == n] == 0).all()
    assert sorted(learned) == [t for d in given for t in d.tokens[1:].tolist()]
    assert rows.labels == len(learned) and rows.documents == 30
    assert rows.cut == sum(len(d.tokens) > length + 1 for d in given)


def test_orders_are_functions_of_the_seed():
    given = documents(*range(2, 30))
    first, second, other = (es.data.rows(given, 16, 2, seed) for seed in (1, 1, 2))

    def tokens(rows, epoch, start=0):
        return [batch[0].tolist() for batch in rows.epoch(epoch, start)]

    assert tokens(first, 0) == tokens(second, 0) and tokens(first, 1, 2) == tokens(second, 1)[2:]
    assert tokens(first, 0) != tokens(first, 1) and tokens(first, 0) != tokens(other, 0)


def test_packing_fills_rows(rng):
    lengths = rng.integers(1, 65, 2000).tolist()
    rows = _pack(lengths, 64)
    assert sorted(n for row in rows for n in row) == list(range(2000))
    assert all(sum(lengths[n] for n in row) <= 64 for row in rows)
    assert len(rows) <= 1.02 * sum(lengths) / 64


def test_completions_alone_are_learned_and_prompts_are_shortened():
    tokens = np.arange(10, 20, dtype=np.int32)

    def rows(prompt, length):
        (batch,) = es.data.rows([es.data.Document(tokens, prompt)], length, 1, is_packed=False).epoch(0)
        return batch[0][0].tolist(), batch[1][0].tolist()

    assert rows(6, 9) == ([*range(10, 19)], [-100] * 5 + [16, 17, 18, 19])
    assert rows(6, 5) == ([14, 15, 16, 17, 18], [-100, 16, 17, 18, 19])
    assert rows(6, 3) == ([15, 16, 17], [16, 17, 18])
    assert rows(1, 9)[1] == [*range(11, 20)]


def test_padded_batches_have_few_widths():
    given = documents(*([3] * 4 + [40] * 4 + [100] * 4))
    rows = es.data.rows(given, 128, 4, is_packed=False)
    assert [batch[0].shape for batch in rows.epoch(0)] == [(4, 16), (4, 64), (4, 128)]


def test_a_part_is_held_out():
    given = documents(*[5] * 40)
    train, held = es.data.hold_out(given, 0.1, 3)
    assert len(held) == 4 and len(train) == 36 and not {id(d) for d in train} & {id(d) for d in held}
    assert [d.tokens[0] for d in es.data.hold_out(given, 0.1, 3)[1]] == [d.tokens[0] for d in held]
    (start,), (end,) = es.data.hold_out(documents(100), 0.2, 0)
    assert (len(start.tokens), len(end.tokens)) == (80, 20) and end.tokens[0] == 80
    for wrong in (0.0, 1.0):
        with pytest.raises(ArgumentError):
            es.data.hold_out(given, wrong, 0)
    with pytest.raises(ArgumentError, match="cannot be divided"):
        es.data.hold_out(documents(3), 0.5, 0)
