"""Plans: where the pieces of a model lie, said apart from the model."""

from spmdx.plans.check import Table
from spmdx.plans.estimate import Estimate
from spmdx.plans.placing import Spread
from spmdx.plans.plan import Plan
from spmdx.plans.ready import (
    data_parallel,
    sequence_parallel,
    tensor_parallel,
    two_dimensional,
    zero1,
    zero2,
    zero3,
)
from spmdx.plans.running import name

__all__ = [
    "Estimate",
    "Plan",
    "Spread",
    "Table",
    "data_parallel",
    "name",
    "sequence_parallel",
    "tensor_parallel",
    "two_dimensional",
    "zero1",
    "zero2",
    "zero3",
]
