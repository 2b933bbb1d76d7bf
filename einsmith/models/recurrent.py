"""Define recurrent networks: classifiers of sequences with cells of four papers, and an LSTM language model."""

from __future__ import annotations

from typing import Any

from einsmith import ops as F
from einsmith.base.arguments import Count, Depth, Share
from einsmith.base.dtypes import dtype_of
from einsmith.base.errors import ShapeError
from einsmith.nn import LLTM, LSTM, MILSTM, SCRN, Dropout, Embedding, Linear, Module, SubLSTM
from einsmith.runtime import buffers
from einsmith.tracing import builder
from einsmith.tracing.builder import Value


class SequenceClassifier(Module):
    """A recurrent cell over a sequence, and a linear layer on its output at the last step.

    forward(input, hx=None) -> logits [B, classes]; hx: the cell's pair of initial states. input: [B, T, input_size];
    images [B, 1, T, input_size] are read row by row; [B, input_size] is a sequence of one step.
    """

    def __init__(self, cell: Module, features: Count, classes: Count, dtype: Any):
        self.cell = cell
        self.fc = Linear(features, classes, dtype=dtype)

    def features(self, input: Value, hx: Any) -> Value:
        """Return the input of the linear layer, [B, features]: the cell's last hidden state."""
        _, (h, _) = self.cell(input, hx)
        return h

    def forward(self, input: Value, hx: Any = None) -> Value:
        x = builder.as_value(input)
        if x.ndim == 4 and x.shape[1] == 1:
            x = x[:, 0]
        elif x.ndim == 2:
            x = x[:, None]
        if x.ndim != 3:
            raise ShapeError(
                f"'input' has shape {input.shape}; sequences are [B, T, features], images [B, 1, T, features], single "
                "steps [B, features]"
            )
        return self.fc(self.features(x, hx))


class MILSTMClassifier(SequenceClassifier):
    """MI-LSTM (see nn.MILSTM) and a linear classifier. The authors of the cell's benchmark have 1024 hidden units."""

    def __init__(
        self, input_size: Count = 28, hidden_size: Count = 256, classes: Count = 10, *, dtype: Any = "float32"
    ):
        cell = MILSTM(input_size, hidden_size, batch_first=True, dtype=dtype)
        super().__init__(cell, hidden_size, classes, dtype)


class SubLSTMClassifier(SequenceClassifier):
    """subLSTM (see nn.SubLSTM) and a linear classifier."""

    def __init__(
        self, input_size: Count = 28, hidden_size: Count = 128, classes: Count = 10, *, dtype: Any = "float32"
    ):
        cell = SubLSTM(input_size, hidden_size, batch_first=True, dtype=dtype)
        super().__init__(cell, hidden_size, classes, dtype)


class LLTMClassifier(SequenceClassifier):
    """LLTM (see nn.LLTM) and a linear classifier."""

    def __init__(
        self, input_size: Count = 28, hidden_size: Count = 128, classes: Count = 10, *, dtype: Any = "float32"
    ):
        cell = LLTM(input_size, hidden_size, batch_first=True, dtype=dtype)
        super().__init__(cell, hidden_size, classes, dtype)


class SCRNClassifier(SequenceClassifier):
    """SC-RNN (see nn.SCRN) and a linear classifier of its output."""

    cell: SCRN

    def __init__(
        self,
        input_size: Count = 28,
        hidden_size: Count = 128,
        context_size: Count = 64,
        alpha: Share = 0.5,
        classes: Count = 10,
        *,
        dtype: Any = "float32",
    ):
        cell = SCRN(input_size, hidden_size, context_size, alpha, batch_first=True, dtype=dtype)
        super().__init__(cell, hidden_size, classes, dtype)

    def features(self, input: Value, hx: Any) -> Value:
        _, (h, s) = self.cell(input, hx)
        return self.cell.output(h, s)


class LSTMLanguageModel(Module):
    """Embedding, layers of LSTM, and a linear decoder: tokens [T, B] -> logits [T*B, vocabulary], in token order.

    forward(tokens) starts from zero states. forward(tokens, begins), with batches of `es.data.stream`, starts from the
    states at the end of the batch before, or from zeros where `begins` [B] is true, and stores the last states in the
    buffers `hidden` and `cell` [layers, B, width]. Evaluation uses the buffers `test_hidden` and `test_cell`, so that
    it does not disturb training. Gradients do not reach into the batch before (truncated backpropagation through
    time). batch: the B of the buffers. dropout: of each layer's input and of the decoder's, never of what a layer
    carries from step to step (Zaremba et al. 2014, arXiv 1409.2329: 0.5 in the medium network, and gradients clipped to
    a norm of 5).
    """

    def __init__(
        self,
        vocabulary: Count = 10_000,
        width: Count = 650,
        layers: Depth = 2,
        batch: Count = 20,
        dropout: Share = 0.0,
        *,
        dtype: Any = "float32",
    ):
        self.embedding = Embedding(vocabulary, width, dtype=dtype)
        self.drop_input, self.drop_output = Dropout(dropout), Dropout(dropout)
        self.rnn = LSTM(width, width, layers, dropout=dropout if layers > 1 else 0.0, dtype=dtype)
        self.decoder = Linear(width, vocabulary, dtype=dtype)
        shape = (layers, batch, width)
        for name in ("hidden", "cell"):
            self.register_buffer(name, buffers.zeros(shape, dtype_of(dtype).numpy))
            self.register_buffer(f"test_{name}", buffers.zeros(shape, dtype_of(dtype).numpy), persistent=False)

    def forward(self, tokens: Value, begins: Any = None) -> Value:
        x = self.drop_input(self.embedding(tokens))
        if begins is None:
            output, _ = self.rnn(x)
        else:
            prefix = "" if self.training else "test_"
            names = (f"{prefix}hidden", f"{prefix}cell")
            fresh = builder.as_value(begins)
            if fresh.shape != x.shape[1:2] or fresh.shape[0] != self.hidden.shape[1]:
                raise ShapeError(
                    f"'begins' has shape {fresh.shape} and 'tokens' {tokens.shape}; a model whose states are of "
                    f"{self.hidden.shape[1]} columns needs [{self.hidden.shape[1]}] and [T, {self.hidden.shape[1]}]"
                )
            before = [
                builder.compute(s.shape, lambda n, b, k, s=s: builder.where(fresh[b], 0.0, s[n, b, k]))
                for s in (getattr(self, name) for name in names)
            ]
            output, last = self.rnn(x, tuple(before))
            for name, s in zip(names, last, strict=True):
                setattr(self, name, s)
        return self.decoder(F.flatten(self.drop_output(output), 0, 1))
