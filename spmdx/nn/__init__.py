"""Neural networks as functions of arrays: no classes, no hidden state, and no word of where the pieces lie."""

from spmdx.nn import initializers
from spmdx.nn.activation import erf, gelu, log_softmax, relu, sigmoid, silu, softmax, swiglu, tanh
from spmdx.nn.attention import attention, rope, rope_table
from spmdx.nn.conv import avg_pool, conv1d, conv2d, max_pool, patchify, unpatchify
from spmdx.nn.dropout import dropout
from spmdx.nn.linear import embedding, linear
from spmdx.nn.loss import cross_entropy
from spmdx.nn.norm import layer_norm, rms_norm
from spmdx.nn.param import Param, count, init, path_key
from spmdx.nn.precision import LossScale, all_finite, cast, loss_scale, select
from spmdx.nn.residual import add_norm

__all__ = [
    "LossScale",
    "Param",
    "add_norm",
    "all_finite",
    "attention",
    "avg_pool",
    "cast",
    "conv1d",
    "conv2d",
    "count",
    "cross_entropy",
    "dropout",
    "embedding",
    "erf",
    "gelu",
    "init",
    "initializers",
    "layer_norm",
    "linear",
    "log_softmax",
    "loss_scale",
    "max_pool",
    "patchify",
    "path_key",
    "relu",
    "rms_norm",
    "rope",
    "rope_table",
    "select",
    "sigmoid",
    "silu",
    "softmax",
    "swiglu",
    "tanh",
    "unpatchify",
]
