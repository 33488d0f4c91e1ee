"""Where the pieces of the models in model.py lie: one line of words for each way, combined by `|`."""

from __future__ import annotations

from spmdx.plans import Plan, data_parallel, sequence_parallel, tensor_parallel, zero1, zero2, zero3

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
PLANS = {
    "dp": data_parallel("data"),
    "megatron": tensor_parallel("model", DIMS),
    "sp": sequence_parallel("model"),
    "zero1": zero1("data"),
    "zero2": zero2("data"),
    "zero3": zero3("data"),
}


def plan(words: str) -> Plan:
    """The plan that is asked for: ``"megatron+zero3"``."""
    made = Plan()
    for word in words.split("+"):
        made = made | PLANS[word]
    return made
