"""Fine-tuning with LoRA against PEFT and PyTorch's AdamW on the same batches."""

import numpy as np
import pytest

import einsmith as es
from einsmith.cli.tasks import token_loss

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

SIZES = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LARGER = SIZES | {"vocab_size": 1009, "hidden_size": 144, "intermediate_size": 384, "num_hidden_layers": 6,
                  "num_attention_heads": 9, "num_key_value_heads": 3}  # fmt: skip


def networks(sizes):
    """transformers' Llama and ours, with the same random weights, far enough from zero that layers matter."""
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    for name, p in theirs.named_parameters():
        if "norm" not in name:
            p.data.normal_(0.0, 0.1)
    ours = es.models.llama(sizes)
    ours.load_state_dict({n: v.numpy() for n, v in theirs.state_dict().items() if n != "lm_head.weight"})
    return theirs, ours


def documents(words, rng, count, longest):
    """Documents with something to learn: each token is mostly the one before, plus one."""
    out = []
    for _ in range(count):
        tokens = (rng.integers(0, words) + np.arange(rng.integers(2, longest))) % words
        noise = rng.random(len(tokens)) < 0.2
        tokens[noise] = rng.integers(0, words, noise.sum())
        out.append(es.data.Document(tokens.astype(np.int32), int(rng.integers(0, len(tokens) - 1))))
    return out


def agree(sizes, count, length, dora):
    theirs, ours = networks(sizes)
    rng = np.random.default_rng(0)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", use_dora=dora, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(theirs, config)
    es.adapters.lora(ours, 4, 8, dora=dora)
    state = theirs.state_dict()
    with torch.no_grad():
        for path, layer in es.adapters.low_rank.adapted_layers(ours):
            state[f"base_model.model.{path}.lora_A.default.weight"].copy_(torch.tensor(layer.lora_A.weight.numpy()))
    step = es.TrainStep(ours, token_loss, es.optim.AdamW(lr=3e-3, weight_decay=0.01))
    optimizer = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.01)
    rows = es.data.rows(documents(sizes["vocab_size"], rng, 40, length), length, 4, 5, is_packed=False)
    batches = [batch for epoch in range(5) for batch in rows.epoch(epoch)][:count]
    assert len(batches) == count
    mine, wanted = [], []
    for tokens, targets in batches:
        mine.append(step(tokens, targets))
        out = theirs(torch.tensor(tokens, dtype=torch.int64)).logits
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), torch.tensor(targets, dtype=torch.int64).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(mine, wanted, atol=1e-4)
    assert np.mean(wanted[-5:]) < 0.95 * np.mean(wanted[:5])


@pytest.mark.parametrize("dora", [False, True])
def test_losses_of_50_steps_are_those_of_peft_and_adamw(dora):
    agree(SIZES, 50, 32, dora)


@pytest.mark.slow
def test_losses_of_50_steps_of_a_larger_network_are_those_of_peft_and_adamw():
    agree(LARGER, 50, 64, False)


def test_packed_documents_have_the_loss_and_the_gradients_of_padded_ones():
    """One batch of all documents, either way."""
    _, ours = networks(SIZES)
    given = documents(61, np.random.default_rng(1), 12, 30)
    es.adapters.lora(ours, 4, 8, seed=0)
    begin = ours.state_dict()
    results = []
    for is_packed in (True, False):
        ours.load_state_dict(begin)
        size = len(es.data.rows(given, 32, 1, is_packed=is_packed))
        (batch,) = es.data.rows(given, 32, size, is_packed=is_packed).epoch(0)
        step = es.TrainStep(ours, token_loss, es.optim.SGD(lr=0.5))
        losses = step(*batch), step(*batch)
        results.append((losses, ours.state_dict()))
    (packed, changed), (padded, expected) = results
    np.testing.assert_allclose(packed, padded, rtol=1e-5)
    for name, value in changed.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6, err_msg=name)


def test_recomputation_and_accumulated_batches_change_nothing():
    """Two batches under a limit of memory, accumulated, make the update of one batch of both without a limit."""
    _, ours = networks(SIZES)
    given = documents(61, np.random.default_rng(1), 40, 30)
    es.adapters.lora(ours, 4, 8, seed=0)
    begin = ours.state_dict()
    results = []
    for size in (2, 4):
        ours.load_state_dict(begin)
        batches = list(es.data.rows(given, 32, size).epoch(0))[: 4 // size]
        step = es.TrainStep(ours, token_loss, es.optim.SGD(lr=0.5), accumulate=len(batches))
        if size == 2:
            with pytest.raises(es.base.errors.MemoryLimitError) as refused:
                es.TrainStep(ours, token_loss, es.optim.SGD(lr=0.5), accumulate=2, memory_limit=1).compile(*batches[0])
            least = float(str(refused.value).partition("at least ")[2].partition(" kB")[0])
            step.memory_limit = round(1.1e3 * least)
        for batch in batches:
            step(*batch)
        results.append((ours.state_dict(), str(step.plan)))
    (limited, plan), (expected, _) = results
    assert "recomputations" in plan
    for name, value in limited.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-6, err_msg=name)
