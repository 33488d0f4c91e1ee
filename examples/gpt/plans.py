"""Where the pieces of the models in model.py lie."""

from __future__ import annotations

from spmdx.plans import Plan, parse

DIMS = {  # the dimension that tensor parallelism divides: heads, hidden units, vocabulary
    "blocks.*.[qkv]": 1,
    "blocks.*.[qkv]_bias": 0,
    "blocks.*.out": 0,
    "blocks.*.gate": 1,
    "blocks.*.up": 1,
    "blocks.*.up_bias": 0,
    "blocks.*.down": 0,
    "outer.tokens": 0,
    "outer.head": 0,
}


def plan(words: str) -> Plan:
    """The plan that is asked for: ``"megatron+zero3"``."""
    return parse(words, DIMS)
