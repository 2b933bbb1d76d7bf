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
# # A recurrent cell of one's own
#
# A cell is a formula that reads itself at the step before. We write one whose gate depends on the distance of the new
# value from the state, check it, and train it on the adding problem (Hochreiter and Schmidhuber 1997): of a sequence of
# numbers, two are marked; the answer is their sum.

# %%
import numpy as np

import einsmith as es

cell = es.op("""
    p[t,b,k] = sum[i](x[t,b,i]*W[k,i]) + c[k]
    last[t,b,k] = where(t > 0, h[t-1,b,k], 0)
    u[t,b,k] = tanh(p[t,b,k] + sum[j](last[t,b,j]*U[k,j]))
    g[t,b,k] = 1/(1 + a[k]*a[k]*(u[t,b,k] - last[t,b,k])**2)
    h[t,b,k] = g[t,b,k]*last[t,b,k] + (1 - g[t,b,k])*u[t,b,k]
    return h
""")
cell

# %% [markdown]
# The product with W does not depend on the state, so it is computed for all steps at once, outside the loop. The
# gradient is a recurrence from the last step to the first:

# %%
shapes = {"x": (5, 2, 3), "W": (4, 3), "c": (4,), "U": (4, 4), "a": (4,)}
cell.gradient("a", **shapes)

# %%
rng = np.random.default_rng(0)
arrays = {n: rng.standard_normal(s) for n, s in shapes.items()}
h = cell(**arrays)
state = np.zeros((2, 4))
for t in range(5):
    u = np.tanh(arrays["x"][t] @ arrays["W"].T + arrays["c"] + state @ arrays["U"].T)
    gate = 1 / (1 + arrays["a"] ** 2 * (u - state) ** 2)
    state = gate * state + (1 - gate) * u
    assert np.allclose(h[t], state)
es.check_gradients(lambda U, a: cell(**{**arrays, "U": U, "a": a}), arrays["U"], arrays["a"], order=2)


# %% [markdown]
# ## As a layer


# %%
class Adder(es.nn.Module):
    """Sequences [B, T, 2] of (number, mark) -> the sum of the marked numbers [B]."""

    def __init__(self, width):
        draw = np.random.default_rng(1)
        self.W = es.nn.Parameter(draw.normal(0, 0.5, (width, 2)).astype(np.float32))
        self.U = es.nn.Parameter(draw.normal(0, width**-0.5, (width, width)).astype(np.float32))
        self.c = es.nn.Parameter(np.zeros(width, np.float32))
        self.a = es.nn.Parameter(np.ones(width, np.float32))
        self.out = es.nn.Linear(width, 1)

    def forward(self, x):
        h = cell(x=x.permute(1, 0, 2), W=self.W, c=self.c, U=self.U, a=self.a)
        return self.out(h[-1])[:, 0]


# %% tags=["parameters"]
SAMPLES, EPOCHS = 4096, 25


# %%
def problems(count, steps=20):
    x = rng.random((count, steps, 2)).astype(np.float32)
    x[:, :, 1] = 0
    rows = np.arange(count)
    first, second = rng.integers(0, steps // 2, count), rng.integers(steps // 2, steps, count)
    x[rows, first, 1] = x[rows, second, 1] = 1
    return x, x[rows, first, 0] + x[rows, second, 0]


es.manual_seed(0)
step = es.TrainStep(Adder(48), es.functional.mse_loss, es.optim.Adam(lr=3e-3), clip_grad_norm=1.0)
step.fit(
    es.data.batches(*problems(SAMPLES), 64, seed=0),
    epochs=EPOCHS,
    validation=es.data.batches(*problems(256), 64),
)
error = step.history[-1]["val_loss"]
error  # always answering 1 has an error of 1/6

# %% [markdown]
# A longer sequence has other shapes but the same loop; `checkpoint=S` keeps every S-th state only and computes the
# others again (`docs/recurrences.md`).

# %%
long = problems(64, steps=100)
step.evaluate([long])
