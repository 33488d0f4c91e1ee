"""Transforms: functions of functions."""

from spmdx.transforms.shapes import eval_shape

__all__ = ["eval_shape"]
