"""Where the pieces of the vision transformer lie."""

from __future__ import annotations

from spmdx.plans import Plan, parse

DIMS = {  # the dimension that tensor parallelism divides: heads, hidden units
    "blocks.*.[qkv]": 1,
    "blocks.*.[qkv]_bias": 0,
    "blocks.*.out": 0,
    "blocks.*.up": 1,
    "blocks.*.up_bias": 0,
    "blocks.*.down": 0,
}


def plan(words: str) -> Plan:
    """The plan that is asked for: ``"megatron+zero3"``."""
    return parse(words, DIMS)
