"""The recurrent cells as PyTorch modules with the state names of Einsmith's, written step by step from the papers."""

from __future__ import annotations

import torch
from torch import nn


class Cell(nn.Module):
    """Subclasses name the shapes of their parameters and what a step is. forward(x [T, B, I], (a, b)) -> (outputs,
    (last a, last b))."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def step(self, x: torch.Tensor, state: tuple) -> tuple:
        raise NotImplementedError

    def output(self, state: tuple) -> torch.Tensor:
        return state[0]

    def forward(self, x: torch.Tensor, state: tuple) -> tuple:
        out = []
        for xt in x:
            state = self.step(xt, state)
            out.append(self.output(state))
        return torch.stack(out), state


class MILSTM(Cell):
    def __init__(self, n: int, h: int):
        rows = dict.fromkeys(("bias_ih", "bias_hh", "alpha", "beta1", "beta2"), (4 * h,))
        super().__init__({"weight_ih": (4 * h, n), "weight_hh": (4 * h, h)} | rows)

    def step(self, x, state):
        h, c = state
        u, v = x @ self.weight_ih.T + self.bias_ih, h @ self.weight_hh.T + self.bias_hh
        i, f, o, g = (self.alpha * u * v + self.beta1 * u + self.beta2 * v).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class SubLSTM(Cell):
    def __init__(self, n: int, h: int):
        super().__init__({"weight_ih": (4 * h, n), "weight_hh": (4 * h, h), "bias_ih": (4 * h,), "bias_hh": (4 * h,)})

    def step(self, x, state):
        h, c = state
        gates = x @ self.weight_ih.T + self.bias_ih + h @ self.weight_hh.T + self.bias_hh
        i, f, z, o = gates.sigmoid().chunk(4, -1)
        c = f * c + z - i
        return c.sigmoid() - o, c


class LLTM(Cell):
    def __init__(self, n: int, h: int):
        super().__init__({"weight": (3 * h, h + n), "bias": (3 * h,)})

    def step(self, x, state):
        h, c = state
        i, o, g = nn.functional.linear(torch.cat([h, x], -1), self.weight, self.bias).chunk(3, -1)
        c = c + nn.functional.elu(g) * i.sigmoid()
        return c.tanh() * o.sigmoid(), c


class SCRN(Cell):
    def __init__(self, n: int, h: int, s: int, alpha: float = 0.5):
        super().__init__({"B": (s, n), "weight": (h, s + n + h), "bias": (h,), "U": (h, h), "V": (h, s)})
        self.alpha = alpha

    def step(self, x, state):
        h, s = state
        s = (1 - self.alpha) * x @ self.B.T + self.alpha * s
        h = nn.functional.linear(torch.cat([s, x, h], -1), self.weight, self.bias).sigmoid()
        return h, s

    def output(self, state):
        return state[0] @ self.U.T + state[1] @ self.V.T
