"""Networks: modules, parameters and layers, as in torch.nn."""

from einsmith.nn import init
from einsmith.nn.cells import LLTM, MILSTM, SCRN, SubLSTM
from einsmith.nn.containers import ModuleDict, ModuleList, Sequential
from einsmith.nn.init import manual_seed
from einsmith.nn.layers import (
    GELU,
    AvgPool2d,
    Conv2d,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Flatten,
    Identity,
    Linear,
    LogSoftmax,
    MaxPool2d,
    MSELoss,
    NLLLoss,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
    Unflatten,
)
from einsmith.nn.module import Module, functional_call
from einsmith.nn.parameter import Buffer, Parameter
from einsmith.nn.recurrent import GRU, LSTM, RNN

__all__ = [
    "AvgPool2d", "Buffer", "Conv2d", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "GRU",
    "Identity", "LLTM", "LSTM", "Linear", "LogSoftmax", "MILSTM", "MSELoss", "MaxPool2d", "Module", "ModuleDict",
    "ModuleList", "NLLLoss", "Parameter", "RNN", "ReLU", "SCRN", "Sequential", "Sigmoid", "Softmax", "SubLSTM",
    "Tanh", "Unflatten", "functional_call", "init", "manual_seed",
]  # fmt: skip
