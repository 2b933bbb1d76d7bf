"""Tokens of texts are those of transformers, from folders that it wrote."""

import json

import pytest

from einsmith.base.errors import DataError
from einsmith.data import Tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="reads tokenizer.json")
transformers = pytest.importorskip("transformers", reason="the reference")
from tests.data.tokenizer_files import TEXTS, train, write  # noqa: E402


def same(folder, **options):
    ours, theirs = Tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in (*TEXTS, "", " ", "Größe 日本 \U0001f600\n\n  a<s>b</s>  <pad>c"):
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids
        assert ours.encode(text, special=False) == theirs(text, add_special_tokens=False).input_ids
        for special in (False, True):
            assert ours.decode(ids, special) == theirs.decode(ids, skip_special_tokens=not special)
    assert len(ours) == len(theirs)
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, theirs.eos_token_id)
    return ours


@pytest.mark.parametrize("ends", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True},
                                  {"add_bos_token": False}])  # fmt: skip
def test_tokens_are_those_of_transformers(ends, tmp_path):
    write(tmp_path, **ends)
    same(tmp_path)


def test_a_template_of_the_file_is_kept(tmp_path):
    inner = train()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", inner.token_to_id("<s>"))]
    )
    write(tmp_path, inner)
    assert same(tmp_path).encode("a")[0] == inner.token_to_id("<s>")


def test_added_tokens_of_the_settings(tmp_path):
    write(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    count = len(Tokenizer(tmp_path))
    entry = {"content": "<new>", "special": True, "lstrip": False, "rstrip": False, "normalized": False,
             "single_word": False}  # fmt: skip
    file.write_text(json.dumps(settings | {"added_tokens_decoder": {str(count): entry}}))
    assert Tokenizer(tmp_path).encode("a<new>")[-1] == count
    file.write_text(json.dumps(settings | {"added_tokens_decoder": {str(count + 5): entry}}))
    with pytest.raises(DataError, match=r"'<new>' cannot have the number"):
        Tokenizer(tmp_path)


def test_truncation_and_padding_are_left_out(tmp_path):
    inner = train()
    plain = inner.encode(TEXTS[0]).ids
    inner.enable_truncation(3)
    inner.enable_padding(length=100)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).encode(TEXTS[0]) == plain


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is no tokenizer"):
        Tokenizer(tmp_path)
    write(tmp_path)
    for text in ("[", "[]"):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(DataError, match=r"tokenizer_config\.json"):
            Tokenizer(tmp_path)


def test_the_package_is_named_where_it_is_missing(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'einsmith\[language\]'"):
        Tokenizer(tmp_path)
