"""Ready plans by their words, as a command line gives them."""

from __future__ import annotations

import pytest

import spmdx as sx
from spmdx import plans
from spmdx.errors import ArgumentError


def test_words_are_the_ready_plans() -> None:
    dims = {"up": 1}
    found = plans.parse("megatron+sp+zero3", dims, data="d", model="m")
    made = plans.tensor_parallel("m", dims) | plans.sequence_parallel("m") | plans.zero3("d")
    assert found.rules == made.rules
    assert plans.parse("zero1").rules == plans.zero1().rules
    assert plans.parse("2d", dims).rules == plans.two_dimensional("data", "model", dims).rules
    assert plans.parse("").rules == sx.Plan().rules


@pytest.mark.parametrize("word", plans.WORDS)
def test_every_word_says_something(word: str) -> None:
    assert any(plans.parse(word, {"up": 1}).rules.values())


def test_another_word() -> None:
    with pytest.raises(ArgumentError, match=r"'fsdp' is no ready plan; they are dp, .*\n.*parse\("):
        plans.parse("dp+fsdp")
