# Generated from the table of operators: python -m tests.docs --update

from einsmith.ops.activation import celu as celu
from einsmith.ops.activation import elu as elu
from einsmith.ops.activation import gelu as gelu
from einsmith.ops.activation import glu as glu
from einsmith.ops.activation import hardshrink as hardshrink
from einsmith.ops.activation import hardsigmoid as hardsigmoid
from einsmith.ops.activation import hardswish as hardswish
from einsmith.ops.activation import hardtanh as hardtanh
from einsmith.ops.activation import leaky_relu as leaky_relu
from einsmith.ops.activation import logsigmoid as logsigmoid
from einsmith.ops.activation import mish as mish
from einsmith.ops.activation import prelu as prelu
from einsmith.ops.activation import relu as relu
from einsmith.ops.activation import relu6 as relu6
from einsmith.ops.activation import selu as selu
from einsmith.ops.activation import sigmoid as sigmoid
from einsmith.ops.activation import silu as silu
from einsmith.ops.activation import softplus as softplus
from einsmith.ops.activation import softshrink as softshrink
from einsmith.ops.activation import softsign as softsign
from einsmith.ops.activation import squash as squash
from einsmith.ops.activation import tanh as tanh
from einsmith.ops.activation import tanhshrink as tanhshrink
from einsmith.ops.activation import threshold as threshold
from einsmith.ops.activation import thresholded_relu as thresholded_relu
from einsmith.ops.arrangement import broadcast_to as broadcast_to
from einsmith.ops.arrangement import chunk as chunk
from einsmith.ops.arrangement import diag as diag
from einsmith.ops.arrangement import diag_embed as diag_embed
from einsmith.ops.arrangement import diagonal as diagonal
from einsmith.ops.arrangement import expand as expand
from einsmith.ops.arrangement import flip as flip
from einsmith.ops.arrangement import hstack as hstack
from einsmith.ops.arrangement import meshgrid as meshgrid
from einsmith.ops.arrangement import movedim as movedim
from einsmith.ops.arrangement import narrow as narrow
from einsmith.ops.arrangement import repeat as repeat
from einsmith.ops.arrangement import repeat_interleave as repeat_interleave
from einsmith.ops.arrangement import roll as roll
from einsmith.ops.arrangement import select as select
from einsmith.ops.arrangement import split as split
from einsmith.ops.arrangement import tile as tile
from einsmith.ops.arrangement import trace as trace
from einsmith.ops.arrangement import tril as tril
from einsmith.ops.arrangement import triu as triu
from einsmith.ops.arrangement import unbind as unbind
from einsmith.ops.arrangement import unflatten as unflatten
from einsmith.ops.arrangement import vstack as vstack
from einsmith.ops.attention import flex_attention as flex_attention
from einsmith.ops.attention import scaled_dot_product_attention as scaled_dot_product_attention
from einsmith.ops.bessel import airy_ai as airy_ai
from einsmith.ops.bessel import bessel_j0 as bessel_j0
from einsmith.ops.bessel import bessel_j1 as bessel_j1
from einsmith.ops.bessel import bessel_y0 as bessel_y0
from einsmith.ops.bessel import bessel_y1 as bessel_y1
from einsmith.ops.bessel import i0 as i0
from einsmith.ops.bessel import i0e as i0e
from einsmith.ops.bessel import i1 as i1
from einsmith.ops.bessel import i1e as i1e
from einsmith.ops.bessel import modified_bessel_k0 as modified_bessel_k0
from einsmith.ops.bessel import modified_bessel_k1 as modified_bessel_k1
from einsmith.ops.bessel import scaled_modified_bessel_k0 as scaled_modified_bessel_k0
from einsmith.ops.bessel import scaled_modified_bessel_k1 as scaled_modified_bessel_k1
from einsmith.ops.bessel import spherical_bessel_j0 as spherical_bessel_j0
from einsmith.ops.conv import conv1d as conv1d
from einsmith.ops.conv import conv2d as conv2d
from einsmith.ops.conv import conv3d as conv3d
from einsmith.ops.conv import conv_tbc as conv_tbc
from einsmith.ops.conv import conv_transpose1d as conv_transpose1d
from einsmith.ops.conv import conv_transpose2d as conv_transpose2d
from einsmith.ops.conv import conv_transpose3d as conv_transpose3d
from einsmith.ops.conv import linear as linear
from einsmith.ops.counting import bincount as bincount
from einsmith.ops.counting import bucketize as bucketize
from einsmith.ops.counting import diff as diff
from einsmith.ops.counting import searchsorted as searchsorted
from einsmith.ops.creation import as_tensor as as_tensor
from einsmith.ops.creation import eye as eye
from einsmith.ops.creation import full as full
from einsmith.ops.creation import full_like as full_like
from einsmith.ops.creation import linspace as linspace
from einsmith.ops.creation import ones as ones
from einsmith.ops.creation import ones_like as ones_like
from einsmith.ops.creation import zeros as zeros
from einsmith.ops.creation import zeros_like as zeros_like
from einsmith.ops.distance import bilinear as bilinear
from einsmith.ops.distance import cdist as cdist
from einsmith.ops.distance import cosine_similarity as cosine_similarity
from einsmith.ops.distance import norm as norm
from einsmith.ops.distance import pairwise_distance as pairwise_distance
from einsmith.ops.distance import pdist as pdist
from einsmith.ops.elementwise import abs as abs
from einsmith.ops.elementwise import add as add
from einsmith.ops.elementwise import ceil as ceil
from einsmith.ops.elementwise import clamp as clamp
from einsmith.ops.elementwise import clip as clip
from einsmith.ops.elementwise import cos as cos
from einsmith.ops.elementwise import cosh as cosh
from einsmith.ops.elementwise import div as div
from einsmith.ops.elementwise import eq as eq
from einsmith.ops.elementwise import erf as erf
from einsmith.ops.elementwise import exp as exp
from einsmith.ops.elementwise import exp2 as exp2
from einsmith.ops.elementwise import expm1 as expm1
from einsmith.ops.elementwise import floor as floor
from einsmith.ops.elementwise import frac as frac
from einsmith.ops.elementwise import ge as ge
from einsmith.ops.elementwise import gt as gt
from einsmith.ops.elementwise import isfinite as isfinite
from einsmith.ops.elementwise import isinf as isinf
from einsmith.ops.elementwise import isnan as isnan
from einsmith.ops.elementwise import le as le
from einsmith.ops.elementwise import lerp as lerp
from einsmith.ops.elementwise import log as log
from einsmith.ops.elementwise import log1p as log1p
from einsmith.ops.elementwise import log2 as log2
from einsmith.ops.elementwise import log10 as log10
from einsmith.ops.elementwise import logaddexp as logaddexp
from einsmith.ops.elementwise import logaddexp2 as logaddexp2
from einsmith.ops.elementwise import logical_and as logical_and
from einsmith.ops.elementwise import logical_not as logical_not
from einsmith.ops.elementwise import logical_or as logical_or
from einsmith.ops.elementwise import logical_xor as logical_xor
from einsmith.ops.elementwise import logit as logit
from einsmith.ops.elementwise import lt as lt
from einsmith.ops.elementwise import masked_fill as masked_fill
from einsmith.ops.elementwise import maximum as maximum
from einsmith.ops.elementwise import minimum as minimum
from einsmith.ops.elementwise import mul as mul
from einsmith.ops.elementwise import nan_to_num as nan_to_num
from einsmith.ops.elementwise import ne as ne
from einsmith.ops.elementwise import neg as neg
from einsmith.ops.elementwise import pow as pow
from einsmith.ops.elementwise import reciprocal as reciprocal
from einsmith.ops.elementwise import remainder as remainder
from einsmith.ops.elementwise import round as round
from einsmith.ops.elementwise import rsqrt as rsqrt
from einsmith.ops.elementwise import sign as sign
from einsmith.ops.elementwise import sin as sin
from einsmith.ops.elementwise import sinc as sinc
from einsmith.ops.elementwise import sinh as sinh
from einsmith.ops.elementwise import sqrt as sqrt
from einsmith.ops.elementwise import square as square
from einsmith.ops.elementwise import sub as sub
from einsmith.ops.elementwise import tan as tan
from einsmith.ops.elementwise import trunc as trunc
from einsmith.ops.elementwise import where as where
from einsmith.ops.elementwise import xlogy as xlogy
from einsmith.ops.embeddings import embedding as embedding
from einsmith.ops.embeddings import embedding_bag as embedding_bag
from einsmith.ops.fractional import fractional_max_pool2d as fractional_max_pool2d
from einsmith.ops.fractional import fractional_max_pool3d as fractional_max_pool3d
from einsmith.ops.group import group_sum as group_sum
from einsmith.ops.indexing import gather as gather
from einsmith.ops.indexing import index_add as index_add
from einsmith.ops.indexing import index_select as index_select
from einsmith.ops.indexing import scatter as scatter
from einsmith.ops.indexing import scatter_add as scatter_add
from einsmith.ops.indexing import take_along_dim as take_along_dim
from einsmith.ops.inverse import acos as acos
from einsmith.ops.inverse import acosh as acosh
from einsmith.ops.inverse import asin as asin
from einsmith.ops.inverse import asinh as asinh
from einsmith.ops.inverse import atan as atan
from einsmith.ops.inverse import atan2 as atan2
from einsmith.ops.inverse import atanh as atanh
from einsmith.ops.linear_recurrence import gated_delta_rule as gated_delta_rule
from einsmith.ops.linear_recurrence import linear_attention as linear_attention
from einsmith.ops.linear_recurrence import mlstm as mlstm
from einsmith.ops.linear_recurrence import rwkv7 as rwkv7
from einsmith.ops.linear_recurrence import ssd as ssd
from einsmith.ops.losses.classes import cross_entropy as cross_entropy
from einsmith.ops.losses.classes import linear_cross_entropy as linear_cross_entropy
from einsmith.ops.losses.classes import nll_loss as nll_loss
from einsmith.ops.losses.ctc import ctc_loss as ctc_loss
from einsmith.ops.losses.margin import cosine_embedding_loss as cosine_embedding_loss
from einsmith.ops.losses.margin import hinge_embedding_loss as hinge_embedding_loss
from einsmith.ops.losses.margin import margin_loss as margin_loss
from einsmith.ops.losses.margin import margin_ranking_loss as margin_ranking_loss
from einsmith.ops.losses.margin import multi_margin_loss as multi_margin_loss
from einsmith.ops.losses.margin import multilabel_margin_loss as multilabel_margin_loss
from einsmith.ops.losses.margin import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from einsmith.ops.losses.margin import soft_margin_loss as soft_margin_loss
from einsmith.ops.losses.margin import triplet_margin_loss as triplet_margin_loss
from einsmith.ops.losses.margin import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from einsmith.ops.losses.regression import binary_cross_entropy as binary_cross_entropy
from einsmith.ops.losses.regression import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from einsmith.ops.losses.regression import gaussian_nll_loss as gaussian_nll_loss
from einsmith.ops.losses.regression import huber_loss as huber_loss
from einsmith.ops.losses.regression import kl_div as kl_div
from einsmith.ops.losses.regression import l1_loss as l1_loss
from einsmith.ops.losses.regression import mse_loss as mse_loss
from einsmith.ops.losses.regression import poisson_nll_loss as poisson_nll_loss
from einsmith.ops.losses.regression import smooth_l1_loss as smooth_l1_loss
from einsmith.ops.multihead import multi_head_attention_forward as multi_head_attention_forward
from einsmith.ops.normalization import batch_norm as batch_norm
from einsmith.ops.normalization import group_norm as group_norm
from einsmith.ops.normalization import instance_norm as instance_norm
from einsmith.ops.normalization import layer_norm as layer_norm
from einsmith.ops.normalization import local_response_norm as local_response_norm
from einsmith.ops.normalization import normalize as normalize
from einsmith.ops.normalization import rms_norm as rms_norm
from einsmith.ops.normalization import sync_batch_norm as sync_batch_norm
from einsmith.ops.ordering import argsort as argsort
from einsmith.ops.ordering import cummax as cummax
from einsmith.ops.ordering import cummin as cummin
from einsmith.ops.ordering import cumprod as cumprod
from einsmith.ops.ordering import cumsum as cumsum
from einsmith.ops.ordering import logcumsumexp as logcumsumexp
from einsmith.ops.ordering import median as median
from einsmith.ops.ordering import sort as sort
from einsmith.ops.ordering import topk as topk
from einsmith.ops.padding import pad as pad
from einsmith.ops.pooling import adaptive_avg_pool1d as adaptive_avg_pool1d
from einsmith.ops.pooling import adaptive_avg_pool2d as adaptive_avg_pool2d
from einsmith.ops.pooling import adaptive_avg_pool3d as adaptive_avg_pool3d
from einsmith.ops.pooling import adaptive_max_pool1d as adaptive_max_pool1d
from einsmith.ops.pooling import adaptive_max_pool2d as adaptive_max_pool2d
from einsmith.ops.pooling import adaptive_max_pool3d as adaptive_max_pool3d
from einsmith.ops.pooling import avg_pool1d as avg_pool1d
from einsmith.ops.pooling import avg_pool2d as avg_pool2d
from einsmith.ops.pooling import avg_pool3d as avg_pool3d
from einsmith.ops.pooling import lp_pool1d as lp_pool1d
from einsmith.ops.pooling import lp_pool2d as lp_pool2d
from einsmith.ops.pooling import lp_pool3d as lp_pool3d
from einsmith.ops.pooling import max_pool1d as max_pool1d
from einsmith.ops.pooling import max_pool2d as max_pool2d
from einsmith.ops.pooling import max_pool3d as max_pool3d
from einsmith.ops.pooling import max_unpool1d as max_unpool1d
from einsmith.ops.pooling import max_unpool2d as max_unpool2d
from einsmith.ops.pooling import max_unpool3d as max_unpool3d
from einsmith.ops.product import addmm as addmm
from einsmith.ops.product import baddbmm as baddbmm
from einsmith.ops.product import bmm as bmm
from einsmith.ops.product import dot as dot
from einsmith.ops.product import einsum as einsum
from einsmith.ops.product import matmul as matmul
from einsmith.ops.product import mm as mm
from einsmith.ops.product import mv as mv
from einsmith.ops.product import outer as outer
from einsmith.ops.random import alpha_dropout as alpha_dropout
from einsmith.ops.random import bernoulli as bernoulli
from einsmith.ops.random import dropout as dropout
from einsmith.ops.random import dropout1d as dropout1d
from einsmith.ops.random import dropout2d as dropout2d
from einsmith.ops.random import dropout3d as dropout3d
from einsmith.ops.random import feature_alpha_dropout as feature_alpha_dropout
from einsmith.ops.random import rand as rand
from einsmith.ops.random import rand_like as rand_like
from einsmith.ops.random import randn as randn
from einsmith.ops.random import randn_like as randn_like
from einsmith.ops.random import rrelu as rrelu
from einsmith.ops.resize import channel_shuffle as channel_shuffle
from einsmith.ops.resize import fold as fold
from einsmith.ops.resize import interpolate as interpolate
from einsmith.ops.resize import pixel_shuffle as pixel_shuffle
from einsmith.ops.resize import pixel_unshuffle as pixel_unshuffle
from einsmith.ops.resize import unfold as unfold
from einsmith.ops.resize import upsample as upsample
from einsmith.ops.resize import upsample_bilinear as upsample_bilinear
from einsmith.ops.resize import upsample_nearest as upsample_nearest
from einsmith.ops.sampling import affine_grid as affine_grid
from einsmith.ops.sampling import grid_sample as grid_sample
from einsmith.ops.softmaxes import gumbel_softmax as gumbel_softmax
from einsmith.ops.softmaxes import log_softmax as log_softmax
from einsmith.ops.softmaxes import logsumexp as logsumexp
from einsmith.ops.softmaxes import softmax as softmax
from einsmith.ops.softmaxes import softmin as softmin
from einsmith.ops.special import digamma as digamma
from einsmith.ops.special import erfc as erfc
from einsmith.ops.special import erfcx as erfcx
from einsmith.ops.special import erfinv as erfinv
from einsmith.ops.special import lgamma as lgamma
from einsmith.ops.special import log_ndtr as log_ndtr
from einsmith.ops.special import ndtri as ndtri
from einsmith.ops.statistics import all as all
from einsmith.ops.statistics import any as any
from einsmith.ops.statistics import count_nonzero as count_nonzero
from einsmith.ops.statistics import std as std
from einsmith.ops.statistics import std_mean as std_mean
from einsmith.ops.statistics import var as var
from einsmith.ops.statistics import var_mean as var_mean
from einsmith.ops.tensor import amax as amax
from einsmith.ops.tensor import amin as amin
from einsmith.ops.tensor import arange as arange
from einsmith.ops.tensor import argmax as argmax
from einsmith.ops.tensor import argmin as argmin
from einsmith.ops.tensor import cat as cat
from einsmith.ops.tensor import flatten as flatten
from einsmith.ops.tensor import max as max
from einsmith.ops.tensor import mean as mean
from einsmith.ops.tensor import min as min
from einsmith.ops.tensor import one_hot as one_hot
from einsmith.ops.tensor import permute as permute
from einsmith.ops.tensor import prod as prod
from einsmith.ops.tensor import reshape as reshape
from einsmith.ops.tensor import squeeze as squeeze
from einsmith.ops.tensor import stack as stack
from einsmith.ops.tensor import sum as sum
from einsmith.ops.tensor import transpose as transpose
from einsmith.ops.tensor import unsqueeze as unsqueeze

__all__ = [
    "abs",
    "acos",
    "acosh",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "add",
    "addmm",
    "affine_grid",
    "airy_ai",
    "all",
    "alpha_dropout",
    "amax",
    "amin",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "as_tensor",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "baddbmm",
    "batch_norm",
    "bernoulli",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "bincount",
    "bmm",
    "broadcast_to",
    "bucketize",
    "cat",
    "cdist",
    "ceil",
    "celu",
    "channel_shuffle",
    "chunk",
    "clamp",
    "clip",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "count_nonzero",
    "cross_entropy",
    "ctc_loss",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "diag",
    "diag_embed",
    "diagonal",
    "diff",
    "digamma",
    "div",
    "dot",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "einsum",
    "elu",
    "embedding",
    "embedding_bag",
    "eq",
    "erf",
    "erfc",
    "erfcx",
    "erfinv",
    "exp",
    "exp2",
    "expand",
    "expm1",
    "eye",
    "feature_alpha_dropout",
    "flatten",
    "flex_attention",
    "flip",
    "floor",
    "fold",
    "frac",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "full",
    "full_like",
    "gated_delta_rule",
    "gather",
    "gaussian_nll_loss",
    "ge",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "group_sum",
    "gt",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "hstack",
    "huber_loss",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "index_add",
    "index_select",
    "instance_norm",
    "interpolate",
    "isfinite",
    "isinf",
    "isnan",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "le",
    "leaky_relu",
    "lerp",
    "lgamma",
    "linear",
    "linear_attention",
    "linear_cross_entropy",
    "linspace",
    "local_response_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_ndtr",
    "log_softmax",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsigmoid",
    "logsumexp",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "lt",
    "margin_loss",
    "margin_ranking_loss",
    "masked_fill",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "maximum",
    "mean",
    "median",
    "meshgrid",
    "min",
    "minimum",
    "mish",
    "mlstm",
    "mm",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "movedim",
    "mse_loss",
    "mul",
    "multi_head_attention_forward",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "mv",
    "nan_to_num",
    "narrow",
    "ndtri",
    "ne",
    "neg",
    "nll_loss",
    "norm",
    "normalize",
    "one_hot",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "pairwise_distance",
    "pdist",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "pow",
    "prelu",
    "prod",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "rms_norm",
    "roll",
    "round",
    "rrelu",
    "rsqrt",
    "rwkv7",
    "scaled_dot_product_attention",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "scatter",
    "scatter_add",
    "searchsorted",
    "select",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "sort",
    "spherical_bessel_j0",
    "split",
    "sqrt",
    "square",
    "squash",
    "squeeze",
    "ssd",
    "stack",
    "std",
    "std_mean",
    "sub",
    "sum",
    "sync_batch_norm",
    "take_along_dim",
    "tan",
    "tanh",
    "tanhshrink",
    "threshold",
    "thresholded_relu",
    "tile",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "triu",
    "trunc",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
    "var",
    "var_mean",
    "vstack",
    "where",
    "xlogy",
    "zeros",
    "zeros_like",
]
