"""Plans: where the pieces of a model lie, said apart from the model."""

from spmdx.plans.check import Table
from spmdx.plans.estimate import Estimate
from spmdx.plans.placing import Spread
from spmdx.plans.plan import Plan
from spmdx.plans.ready import (
    WORDS,
    data_parallel,
    parse,
    sequence_parallel,
    tensor_parallel,
    two_dimensional,
    zero1,
    zero2,
    zero3,
)
from spmdx.plans.running import name

__all__ = [
    "WORDS",
    "Estimate",
    "Plan",
    "Spread",
    "Table",
    "data_parallel",
    "name",
    "parse",
    "sequence_parallel",
    "tensor_parallel",
    "two_dimensional",
    "zero1",
    "zero2",
    "zero3",
]
