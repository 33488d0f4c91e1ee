"""Noise put into images and taken out again: DDPM's objective, the cosine schedule, and sampling by DDIM.

Everything that is random is drawn by `sx.random` from a key: the same noise under every plan, on any number of ranks.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from model import Config, noise_in

import spmdx as sx

LEAST = 1e-3  # of the share of the image that is left


def angle(times: Any) -> Any:
    """At times in [0, 1] there is cos(angle) of the image and sin(angle) of noise: their squares add to 1.

    The cosine schedule of Nichol and Dhariwal, 2021, in continuous time.
    """
    return (0.008 + times) / 1.008 * math.acos(LEAST)


def loss(params: Any, images: Any, classes: Any, key: Any, config: Config) -> sx.Array:
    """The mean squared error of the noise that the model finds (Ho, Jain and Abbeel, "DDPM", 2020).

    A tenth of the images lose their class, so that the model learns what is common to all (Ho and Salimans, 2022).
    """
    for_times, for_noise, for_classes, for_dropout = sx.random.split(key, 4)
    size, kind = images.shape[0], images.dtype
    times = sx.random.uniform(for_times, (size,), dtype=kind)
    noise = sx.random.normal(for_noise, images.shape, dtype=kind)
    classes = sx.where(sx.random.bernoulli(for_classes, (size,), 0.1), config.classes, classes)
    images, noise, times, classes = sx.name((images, noise, times, classes), "batch")
    mixed = angle(times)[:, None, None]
    noisy = sx.cos(mixed) * images + sx.sin(mixed) * noise
    found = noise_in(params, noisy, times, classes, config, for_dropout)
    return sx.mean((found - noise) ** 2)


def sample(
    params: Any, classes: Any, key: Any, config: Config, steps: int = 40, guidance: float = 2.0, dtype: Any = np.float32
) -> sx.Array:
    """Images of the classes asked for, [batch, height, width], in [-1, 1] (Song, Meng and Ermon, "DDIM", 2021).

    Args:
        guidance: how far from what is common to all classes towards the one asked for; 1 is the model's own noise.
    """
    any_class = np.full_like(classes, config.classes)
    x = sx.random.normal(key, (len(classes), config.image, config.image), dtype=dtype)
    moments = np.linspace(1, 0, steps + 1)
    for now, then in pairwise(moments):
        times = np.full(len(classes), now, dtype)
        own, common = (noise_in(params, x, sx.asarray(times), sx.asarray(c), config) for c in (classes, any_class))
        noise = common + guidance * (own - common)
        image_share, noise_share = math.cos(angle(now)), math.sin(angle(now))
        image = sx.clip((x - noise_share * noise) / image_share, -1, 1)
        noise = (x - image_share * image) / noise_share
        x = math.cos(angle(then)) * image + math.sin(angle(then)) * noise
    return x
