"""Provide modules, parameters and layers of networks, as in torch.nn."""

from typing import TYPE_CHECKING, Any

from einsmith import functional
from einsmith.nn import init, operators
from einsmith.nn.activation import PReLU, RReLU, Softmax2d
from einsmith.nn.adaptive import AdaptiveLogSoftmaxWithLoss
from einsmith.nn.attention import MultiheadAttention
from einsmith.nn.cells import LLTM, MILSTM, SCRN, SubLSTM
from einsmith.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from einsmith.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from einsmith.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from einsmith.nn.embedding import Bilinear, Embedding, EmbeddingBag, PairwiseDistance
from einsmith.nn.fake_quantize import FakeQuantize
from einsmith.nn.frozen import KeptWeight, freeze
from einsmith.nn.init import manual_seed
from einsmith.nn.layers import Identity, Unflatten
from einsmith.nn.linear import Linear, LinearCrossEntropyLoss
from einsmith.nn.linear_attention import MLSTM, GatedDeltaNet, KimiDeltaAttention, Mamba2
from einsmith.nn.module import Module
from einsmith.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
    SyncBatchNorm,
)
from einsmith.nn.operators import *  # noqa: F403
from einsmith.nn.padding import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from einsmith.nn.parameter import Buffer, Parameter
from einsmith.nn.pooling import FractionalMaxPool2d, FractionalMaxPool3d, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d
from einsmith.nn.recurrent import GRU, LSTM, RNN
from einsmith.nn.stateless import functional_call
from einsmith.nn.step_cells import GRUCell, LSTMCell, RNNCell
from einsmith.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from einsmith.nn.vision import Upsample, UpsamplingBilinear2d, UpsamplingNearest2d
from einsmith.tracing.refused import missing_name

__all__ = [
    "GRU",
    "GRUCell",
    "LLTM",
    "LSTM",
    "LSTMCell",
    "MILSTM",
    "MLSTM",
    "RNN",
    "RNNCell",
    "SCRN",
    "AdaptiveLogSoftmaxWithLoss",
    "AlphaDropout",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Buffer",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "EmbeddingBag",
    "FeatureAlphaDropout",
    "FakeQuantize",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "GatedDeltaNet",
    "GroupNorm",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KeptWeight",
    "KimiDeltaAttention",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LocalResponseNorm",
    "Mamba2",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "PReLU",
    "PairwiseDistance",
    "Parameter",
    "ParameterDict",
    "ParameterList",
    "RMSNorm",
    "RReLU",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Sequential",
    "Softmax2d",
    "SubLSTM",
    "SyncBatchNorm",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
    "functional",
    "freeze",
    "functional_call",
    "init",
    "manual_seed",
]
__all__ += operators.__all__

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, ["torch.nn"], name, __all__)
