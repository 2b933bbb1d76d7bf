"""Generation: greedy tokens are those of transformers, draws have the right distribution, caches end at a length."""

import threading

import numpy as np
import pytest

import einsmith as es
from einsmith.base.errors import ArgumentError, KindError, ShapeError
from einsmith.models.generation import Decoder, choose, generate, stream

torch = pytest.importorskip("torch", reason="the references are PyTorch's")
pytest.importorskip("transformers", reason="the references are those of transformers")
from tests.models.language import random_model  # noqa: E402
from tests.models.twin import close  # noqa: E402


def loaded(name, folder, seed=3):
    theirs = random_model(name, seed)
    theirs.save_pretrained(folder)
    return es.models.from_folder(folder), theirs


def continued(theirs, ids, count):
    with torch.no_grad():
        out = theirs.generate(
            torch.tensor(ids), attention_mask=torch.ones(ids.shape), max_new_tokens=count, do_sample=False,
            pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    return out.numpy()


@pytest.mark.parametrize("name", ["llama", "llama, llama3", "qwen2, windows", "qwen3, layers", "mistral", "gpt2"])
def test_greedy_tokens_are_those_of_transformers(name, tmp_path, rng):
    ours, theirs = loaded(name, tmp_path)
    for batch, steps in ((2, 7), (1, 1)):
        ids = rng.integers(0, 80, (batch, steps))
        np.testing.assert_array_equal(generate(ours, ids, max_new_tokens=50), continued(theirs, ids, 50))


def test_a_token_at_a_time_gives_the_logits_of_the_whole(tmp_path, rng):
    ours, _ = loaded("qwen3, layers", tmp_path)
    ids = rng.integers(0, 97, (3, 40))
    decoder, whole = Decoder(ours, 3, 40), ours(ids)
    close(decoder.read(ids[:, :5]), whole[:, 4], "prompt", 1e-5)
    for n in range(5, 40):
        close(decoder.read(ids[:, n : n + 1]), whole[:, n], f"token {n}", 1e-5)
    with pytest.raises(ShapeError, match=r"need \(3, 1\)"):
        decoder.read(ids[:, :2])
    decoder.restart()
    close(decoder.read(ids[:, :1]), whole[:, 0], "again", 1e-5)


def test_what_lies_beyond_the_length_is_not_read(tmp_path, rng):
    ours, _ = loaded("llama", tmp_path)
    ids = rng.integers(0, 97, (1, 9))
    results = []
    for value in (0.0, np.nan):
        decoder = Decoder(ours)
        decoder.read(ids)
        for buffer in decoder.cells.buffers():
            if buffer.ndim == 4:
                buffer.data[10:] = value
        results.append(decoder.read(ids[:, :1]))
    np.testing.assert_array_equal(*results)
    assert np.isfinite(results[0]).all()


def test_one_program_serves_all_lengths(tmp_path, rng):
    ours, _ = loaded("smollm", tmp_path)
    decoder = Decoder(ours, 1, 60)
    for steps in (11, 7, 23, 5, 19):
        decoder.restart()
        decoder.read(rng.integers(0, 97, (1, steps)))
        for _ in range(20):
            decoder.read(np.array([[1]]))
    assert len(decoder._token._cache) == 1
    assert [run.is_shared for run, _ in decoder._prompt._cache.values()].count(False) == 1  # that of the first prompt
    with pytest.raises(ShapeError, match="do not fit into a cache of 64"):
        for _ in range(64):
            decoder.read(np.array([[1]]))


def test_new_weights_are_used_and_programs_kept(tmp_path, rng):
    ours, theirs = loaded("gpt2", tmp_path)
    ids = rng.integers(0, 80, (1, 4))
    before = generate(ours, ids, max_new_tokens=20)
    kept = ours._decoder
    other = random_model("gpt2", 8)
    ours.load_state_dict({n: v.detach().numpy() for n, v in other.state_dict().items()})
    after = generate(ours, ids, max_new_tokens=20)
    assert ours._decoder is kept and not np.array_equal(before, after)
    np.testing.assert_array_equal(after, continued(other, ids, 20))


def test_generation_changes_nothing_of_the_model(tmp_path, rng):
    ours, _ = loaded("llama", tmp_path)
    ours.train()
    state, ids = ours.state_dict(), rng.integers(0, 97, (1, 3))
    generate(ours, ids, max_new_tokens=3)
    assert ours.training and list(ours.state_dict()) == list(state)
    assert len([*ours.modules()]) == len([*es.models.llama(ours.config).modules()])


def test_texts_of_several_threads_and_streams_do_not_mix(tmp_path, rng):
    ours, _ = loaded("llama", tmp_path)
    ids = rng.integers(0, 97, (2, 6))
    want = [generate(ours, row, max_new_tokens=12)[6:] for row in ids]
    streams = [stream(ours, row, max_new_tokens=12) for row in ids]
    mixed = [[int(t[0]) for t in pair] for pair in zip(*streams, strict=True)]
    np.testing.assert_array_equal(mixed, np.stack(want, 1))
    results = {}
    threads = [
        threading.Thread(target=lambda n: results.update({n: generate(ours, ids[n], max_new_tokens=12)[6:]}), args=(n,))
        for n in range(2)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_array_equal([results[0], results[1]], want)


def test_stop_tokens_end_a_text(tmp_path, rng):
    ours, _ = loaded("llama", tmp_path)
    ids = rng.integers(0, 97, 5)
    text = generate(ours, ids, max_new_tokens=30)
    stop = int(text[12])
    first = 5 + text[5:].tolist().index(stop)
    np.testing.assert_array_equal(generate(ours, ids, max_new_tokens=30, stop=[stop]), text[: first + 1])
    both = np.stack([ids, (ids + 1) % 97])
    out = generate(ours, both, max_new_tokens=30, stop=[stop])
    np.testing.assert_array_equal(out[0, : first + 1], text[: first + 1])
    assert (out[0, first:] == stop).all()


def test_draws_follow_the_softmax(rng):
    logits = np.array([[2.0, 1.0, 0.0, -1.0, 3.0]])
    generator = np.random.Generator(np.random.PCG64(0))

    def counts(n=20_000, **options):
        drawn = choose(np.repeat(logits, n, 0), rng=generator, **{"top_k": None, "top_p": None} | options)
        return np.bincount(drawn, minlength=5) / n

    def softmax(kept, temperature):
        p = np.where(np.isin(np.arange(5), kept), np.exp(logits[0] / temperature), 0)
        return p / p.sum()

    for kept, options in (
        ([0, 1, 2, 3, 4], {"temperature": 2.0}),
        ([4, 0, 1], {"temperature": 1.0, "top_k": 3}),
        ([4, 0], {"temperature": 1.0, "top_p": 0.8}),  # 0.64 and 0.23
        ([4], {"temperature": 1.0, "top_p": 0.0}),
        ([4], {"temperature": 5.0, "top_k": 1}),
        ([4, 0], {"temperature": 1.0, "top_k": 2, "top_p": 1.0}),
    ):
        np.testing.assert_allclose(counts(**options), softmax(kept, options["temperature"]), atol=0.015)
    assert (counts(temperature=1e-3)[4]) == 1.0


def test_which_tokens_may_be_drawn_is_as_in_transformers(rng):
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    for _ in range(50):
        logits, p, k = rng.standard_normal((1, 17)), float(rng.uniform(0.05, 0.99)), int(rng.integers(1, 17))
        scores = TopPLogitsWarper(p)(None, TopKLogitsWarper(k)(None, torch.tensor(logits)))
        want = set(np.flatnonzero(np.isfinite(scores[0].numpy())))
        generator = np.random.Generator(np.random.PCG64(1))
        drawn = {int(t) for t in choose(np.repeat(logits, 4000, 0), 1.0, k, p, generator)}
        likely = {t for t in want if scores[0].softmax(-1)[t] > 0.01}
        assert likely <= drawn <= want


def test_draws_depend_on_the_seed_alone(tmp_path, rng):
    ours, _ = loaded("llama", tmp_path)
    ids = rng.integers(0, 97, (2, 5))
    options = {"max_new_tokens": 20, "temperature": 1.0}
    a, b, c = (generate(ours, ids, **options, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_arguments_are_checked(tmp_path):
    ours, _ = loaded("gpt2", tmp_path)
    with pytest.raises(ArgumentError, match=r"4 tokens and max_new_tokens=78 are more than the model's 80"):
        generate(ours, [1, 2, 3, 4], max_new_tokens=78)
    for ids in ([], [[]], [1.0], [[[1]]]):
        with pytest.raises(ShapeError, match=r"pass integers \[T\] or \[B, T\]"):
            generate(ours, ids, max_new_tokens=1)
    with pytest.raises(es.IndexOutOfRange):
        generate(ours, [83], max_new_tokens=1)
    with pytest.raises(KindError, match="pass a Llama or a GPT"):
        generate(es.models.mlp3(), [1], max_new_tokens=1)
    for wrong in ({"temperature": -1.0}, {"top_p": 2.0}, {"top_k": 0}, {"max_new_tokens": 0}):
        with pytest.raises(KindError):
            generate(ours, [1], **{"max_new_tokens": 1} | wrong)
