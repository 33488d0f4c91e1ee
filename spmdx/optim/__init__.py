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
    join_schedules,
    linear_schedule,
    warmup_cosine_decay_schedule,
)
from spmdx.optim.steps import (
    add_decayed_weights,
    clip,
    clip_by_global_norm,
    global_norm,
    scale,
    scale_by_learning_rate,
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
    "global_norm",
    "join_schedules",
    "linear_schedule",
    "lion",
    "momentum",
    "muon",
    "orthogonal",
    "partition",
    "scale",
    "scale_by_learning_rate",
    "scale_by_muon",
    "sgd",
    "warmup_cosine_decay_schedule",
]
