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
# # A new attention
#
# An attention that no library has: keys vote by a power of their distance to the query, as in Student's t
# distribution, in place of the softmax of a product. We write it as a formula, look at it and at its gradient, check
# both, put it into a small network and train it.

# %%
import numpy as np

import einsmith as es

student = es.op("""
    w[b,h,i,j] = where(j <= i, 1/(1 + sum[d]((q[b,h,i,d] - k[b,h,j,d])**2)/nu[h]), 0)
    y[b,h,i,d] = sum[j](w[b,h,i,j]*v[b,h,j,d])/sum[j](w[b,h,i,j])
""")
student

# %% [markdown]
# A notebook shows the formula with a table for each statement: which axis indexes which dimension of which tensor. `nu`
# is a learned width for each head. The derived gradient is shown in the same way, and is a formula again:

# %%
shape = (2, 2, 6, 4)
student.gradient("q", q=shape, k=shape, nu=(2,), v=shape)

# %% [markdown]
# Check values with NumPy, and gradients of first and second order with finite differences:

# %%
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal(shape) for _ in range(3))
nu = np.array([1.0, 3.0])
w = np.tril(1 / (1 + ((q[:, :, :, None] - k[:, :, None]) ** 2).sum(-1) / nu[:, None, None]))
assert np.allclose(student(q=q, k=k, v=v, nu=nu), w @ v / w.sum(-1, keepdims=True))
es.check_gradients(lambda q, k, v, nu: student(q=q, k=k, v=v, nu=nu), q, k, v, nu, order=2)

# %% [markdown]
# What was compiled: kernels in order of execution, as wide as they are predicted to take time.

# %%
student.plan

# %% [markdown]
# ## In a network
#
# One block: the attention, a residual connection, and a layer that reads the token. The task is recall: the sequence
# ends with a token that stood in it before, and the answer is the token that followed it there.


# %%
class Recall(es.nn.Module):
    """Tokens [B, T] -> logits [B, tokens] of what follows the last one."""

    def __init__(self, tokens, width, heads):
        self.heads = heads
        self.embed = es.nn.Embedding(tokens, width)
        self.previous = es.nn.Linear(width, width)
        self.qkv = es.nn.Linear(width, 3 * width)
        self.nu = es.nn.Parameter(np.zeros(heads, np.float32))
        self.out = es.nn.Linear(width, tokens)

    def forward(self, ids):
        x = self.embed(ids)
        before = es.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        x = x + self.previous(before)  # each token also carries the one before it
        b, t, width = x.shape
        parts = self.qkv(x).reshape(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = student(q=parts[0], k=parts[1], v=parts[2], nu=es.exp(self.nu))
        return self.out((x + y.permute(0, 2, 1, 3).reshape(b, t, width))[:, -1])


# %% tags=["parameters"]
SAMPLES, EPOCHS = 4096, 20


# %%
def sequences(count, length=10, tokens=12):
    """Return sequences without repetition but for the last token, and what followed it."""
    ids = rng.permuted(np.tile(np.arange(tokens), (count, 1)), axis=1)[:, :length]
    at = rng.integers(0, length - 2, count)
    ids[:, -1] = ids[np.arange(count), at]
    return ids, ids[np.arange(count), at + 1]


es.manual_seed(0)
model = Recall(12, 32, 2)
model

# %%
step = es.TrainStep(model, es.functional.cross_entropy, es.optim.AdamW(lr=3e-3))
step.fit(
    es.data.batches(*sequences(SAMPLES), 64, seed=0),
    epochs=EPOCHS,
    validation=es.data.batches(*sequences(256), 64),
)
accuracy = step.history[-1]["val_accuracy"]
accuracy

# %% [markdown]
# The training step is one native program; the attention's weights are a part of its kernels, forward and backward:

# %%
step.plan
