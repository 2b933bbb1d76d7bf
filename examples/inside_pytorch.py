"""A formula inside a PyTorch model: a layer of distances to learned centers, trained by torch, and compiled by it.

python examples/inside_pytorch.py
"""

from __future__ import annotations

import torch

import einsmith as es
from einsmith.frontends.torch import operator

squared_distance = operator(es.op("D[i,j] = sum[k]((X[i,k] - Y[j,k]) * (X[i,k] - Y[j,k]))"))


class Centers(torch.nn.Module):
    """Scores of `classes` by the distance of a small network's output to a center of each."""

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(features, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
        self.centers = torch.nn.Parameter(torch.randn(classes, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -squared_distance(self.network(x), self.centers)


def main() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(32, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    torch.testing.assert_close(squared_distance(x, y), torch.cdist(x, y) ** 2)
    small = (x[:3].clone().requires_grad_(), y.clone().requires_grad_())
    assert torch.autograd.gradcheck(squared_distance, small) and torch.autograd.gradgradcheck(squared_distance, small)
    print("values, gradients and second derivatives agree with torch's own checks")

    means = torch.randn(5, 20) * 1.5
    labels = torch.randint(5, (512,))
    data = means[labels] + torch.randn(512, 20)
    model = Centers(20, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(5):
        for batch, target in zip(data.split(64), labels.split(64), strict=True):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (model(data).argmax(1) == labels).float().mean()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {right:.1%} right")

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(data), model(data))
    print("torch.compile takes the model as one graph")


if __name__ == "__main__":
    main()
