"""Optimizers, in the shape of optax: pure functions of pytrees, whose states lie where the parameters lie."""

from spmdx.optim.adafactor import adafactor
from spmdx.optim.adam import adam, adamw
from spmdx.optim.base import GradientTransformation, apply_updates, chain, partition
from spmdx.optim.labels import Matrix, by_path
from spmdx.optim.momentum import lion, momentum, sgd
from spmdx.optim.muon import muon, orthogonal, scale_by_muon
from spmdx.optim.schedules import (
    constant_schedule,
    cosine_decay_schedule,
    exponential_decay,
    join_schedules,
    linear_schedule,
    piecewise_constant_schedule,
    warmup_cosine_decay_schedule,
)
from spmdx.optim.steps import (
    add_decayed_weights,
    clip,
    clip_by_global_norm,
    global_norm,
    identity,
    masked,
    scale,
    scale_by_learning_rate,
    set_to_zero,
)

__all__ = [
    "GradientTransformation",
    "Matrix",
    "adafactor",
    "adam",
    "adamw",
    "add_decayed_weights",
    "apply_updates",
    "by_path",
    "chain",
    "clip",
    "clip_by_global_norm",
    "constant_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
    "global_norm",
    "identity",
    "join_schedules",
    "linear_schedule",
    "lion",
    "masked",
    "momentum",
    "muon",
    "orthogonal",
    "partition",
    "piecewise_constant_schedule",
    "scale",
    "scale_by_learning_rate",
    "scale_by_muon",
    "set_to_zero",
    "sgd",
    "warmup_cosine_decay_schedule",
]
