"""Define embeddings and layers of two inputs, with names, arguments, initial distributions and states of torch.nn."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Size
from einsmith.base.errors import ArgumentError, ShapeError
from einsmith.nn import init
from einsmith.nn.linear import empty, reset_all
from einsmith.nn.module import Module
from einsmith.nn.operator_layer import OperatorLayer
from einsmith.nn.parameter import to_numpy
from einsmith.tracing.builder import Value


class _Table(Module):
    """Base of layers with a table: weight [num_embeddings, embedding_dim], standard normal at first; the row
    `padding_idx` is zero.

    _weight: initial values. scale_grad_by_freq: a row's gradient is divided by the number of its reads. `sparse` is
    accepted and has no effect: gradients are dense. max_norm is an error.
    """

    def _make(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        scale_grad_by_freq: bool,
        sparse: bool,
        weight: Any,
        dtype: Any,
    ) -> None:
        name = type(self).__name__
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ArgumentError(f"padding_idx={padding_idx} must be one of the {num_embeddings} rows")
        if max_norm is not None:
            raise ArgumentError(
                f"{name}: max_norm={max_norm!r} is not supported, as it changes rows while they are read; scale the "
                "weight instead"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.norm_type, self.scale_grad_by_freq, self.sparse = norm_type, scale_grad_by_freq, sparse
        shape = (num_embeddings, embedding_dim)
        self.weight = empty(shape, dtype)
        if weight is None:
            self.reset_parameters()
        else:
            values = to_numpy(weight)
            if values.shape != shape:
                raise ShapeError(f"{name}: _weight has shape {values.shape}, needs {shape}")
            self.weight.data = values

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            values = self.weight.numpy()
            values[self.padding_idx] = 0
            self.weight.data = values

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, **options: Any) -> Any:
        """Return a layer whose weight is `embeddings`, two-dimensional; it is learned only where not `freeze`."""
        values = to_numpy(embeddings)
        if values.ndim != 2:
            raise ShapeError(f"{cls.__name__}: embeddings have shape {values.shape}, need two dimensions")
        make: Any = cls
        layer = make(*values.shape, _weight=values, dtype=values.dtype, **options)
        layer.weight.requires_grad = not freeze
        return layer

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        if self.scale_grad_by_freq:
            text += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        return text


class Embedding(_Table):
    """Rows of a table chosen by integers: [...] -> [..., embedding_dim]. weight [num_embeddings, embedding_dim].

    Standard normal at first; the row `padding_idx` is zero and gets no gradient. scale_grad_by_freq: a row's gradient
    is divided by the number of its reads. `sparse` is accepted and has no effect. max_norm is an error.
    """

    def __init__(
        self,
        num_embeddings: Size,
        embedding_dim: Size,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        _freeze: bool = False,
        *,
        dtype: Any = "float32",
    ):
        self._make(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, dtype
        )
        self.weight.requires_grad = not _freeze

    def forward(self, input: Value) -> Value:
        return F.embedding(input, self.weight, self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq)


class EmbeddingBag(_Table):
    """The sum, mean or maximum of the rows of a table in each bag; see `functional.embedding_bag`.

    weight [num_embeddings, embedding_dim], standard normal at first.
    """

    def __init__(
        self,
        num_embeddings: Size,
        embedding_dim: Size,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        dtype: Any = "float32",
    ):
        self._make(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight, dtype
        )
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"EmbeddingBag: mode={mode!r} must be 'sum', 'mean' or 'max'")
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, input: Value, offsets: Any = None, per_sample_weights: Any = None) -> Value:
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.scale_grad_by_freq:
            text += f", scale_grad_by_freq={self.scale_grad_by_freq}"
        text += f", mode={self.mode!r}"
        return text + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")


class Bilinear(Module):
    """x1 W x2 + b: [..., in1_features], [..., in2_features] -> [..., out_features].

    weight [out_features, in1_features, in2_features], bias [out_features], uniform in +-1/sqrt(in1_features) at first.
    """

    def __init__(
        self, in1_features: Count, in2_features: Size, out_features: Size, bias: bool = True, *, dtype: Any = "float32"
    ):
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = empty((out_features, in1_features, in2_features), dtype)
        self.register_parameter("bias", empty((out_features,), dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        reset_all(self, self.in1_features)

    def forward(self, input1: Value, input2: Value) -> Value:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class _Similarity(OperatorLayer, family="cosine_similarity"):
    shown = ()


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last dimension; see `functional.pairwise_distance`."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Value, x2: Value) -> Value:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
