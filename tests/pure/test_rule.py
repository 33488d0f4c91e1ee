"""The factor-string grammar: what it reads, what it binds to, and what it refuses. All exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spmdx as sx
from spmdx.errors import RuleError, ShapeError
from spmdx.rule import ELLIPSIS, Dim, Form, bind, parse

FACTORS = st.sampled_from(["m", "k", "n", "d0", "d1", "head"])
TOKENS = st.one_of(
    FACTORS,
    FACTORS.map(lambda f: f"[{f}]"),
    st.lists(FACTORS, min_size=1, max_size=3).map(lambda fs: f"({' '.join(fs)})"),
    st.just("1"),
)
SIDES = st.lists(TOKENS, max_size=4)
SHAPES = st.lists(st.integers(0, 3).map(lambda n: n if n else 1), max_size=4).map(tuple)


def show(dims: tuple[Dim, ...], whole: frozenset[str]) -> str:
    """A rule's side, written again."""
    out = []
    for dim in dims:
        if dim == ELLIPSIS:
            out.append("...")
        elif not dim.factors:
            out.append("1")
        elif len(dim.factors) == 1:
            out.append(f"[{dim.factors[0]}]" if dim.factors[0] in whole else dim.factors[0])
        else:
            out.append(f"({' '.join(dim.factors)})")
    return " ".join(out)


def test_a_product() -> None:
    rule = parse("... m k, ... k n -> ... m n")
    assert rule.inputs == ((ELLIPSIS, Dim(("m",)), Dim(("k",))), (ELLIPSIS, Dim(("k",)), Dim(("n",))))
    assert rule.output == (ELLIPSIS, Dim(("m",)), Dim(("n",)))
    assert rule.whole == frozenset()


def test_whole_grouped_and_one() -> None:
    rule = parse("(h d) [k] 1 -> h d 1 [k]")
    assert rule.inputs == ((Dim(("h", "d")), Dim(("k",)), Dim(())),)
    assert rule.output == (Dim(("h",)), Dim(("d",)), Dim(()), Dim(("k",)))
    assert rule.whole == {"k"}


def test_operands_without_dimensions() -> None:
    assert parse("->").inputs == ((),)
    assert parse(", a -> a").inputs == ((), (Dim(("a",)),))
    assert parse(" a  b->b ").output == (Dim(("b",)),)


@given(st.lists(SIDES, min_size=1, max_size=3), SIDES)
def test_writing_and_reading_again(inputs: list[list[str]], output: list[str]) -> None:
    text = f"{', '.join(' '.join(side) for side in inputs)} -> {' '.join(output)}"
    rule = parse(text)
    again = parse(f"{', '.join(show(dims, rule.whole) for dims in rule.inputs)} -> {show(rule.output, rule.whole)}")
    assert (again.inputs, again.output) == (rule.inputs, rule.output)
    assert [len(dims) for dims in rule.inputs] == [len(side) for side in inputs]


@given(st.text(alphabet="ab [](),.->1", max_size=12))
def test_any_text_is_read_or_refused_with_its_text(text: str) -> None:
    try:
        parse(text)
    except RuleError as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m k, k n", 'has no arrow(.|\n)*Write "inputs -> output"'),
        ("m {k} -> m", r"cannot be read at ' ?\{k\}'"),
        ("m [k -> m", r"cannot be read at ' ?\[k'"),
        ("(h d -> h", r"cannot be read at '\(h d'"),
        ("... a ... -> a", "two ellipses"),
        ("a -> a -> a", "cannot be read"),
        (".. a -> a", "cannot be read"),
    ],
)
def test_what_is_no_rule(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        parse(text)


# Bound to shapes


@given(SHAPES, SHAPES)
def test_broadcasting_is_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            bind("..., ... -> ...", [a, b], "add")
        return
    bound = bind("..., ... -> ...", [a, b], "add")
    assert bound.shape == want
    for dims, shape in zip(bound.inputs, (a, b)):  # a dimension that is stretched has no factor: nothing to shard
        for i, (dim, n) in enumerate(zip(dims, shape)):
            stretched = n != want[len(want) - len(shape) + i]
            assert bool(dim.factors) != stretched


def test_zero_broadcasts_against_one_only() -> None:
    assert bind("..., ... -> ...", [(0, 3), (1, 3)], "add").shape == (0, 3)
    assert bind("..., ... -> ...", [(1, 1), (0,)], "add").shape == (1, 0)
    with pytest.raises(ShapeError, match=r"0 against 3|3 against 0"):
        bind("..., ... -> ...", [(0,), (3,)], "add")


def test_a_product_bound() -> None:
    bound = bind("... m k, ... k n -> ... m n", [(7, 2, 3), (3, 5)], "matmul")
    assert bound.shape == (7, 2, 5)
    assert bound.reduced == {"k"}
    assert set(bound.shardable) == {"~0", "m", "k", "n"}
    with pytest.raises(ShapeError, match=r"matmul: shapes \(2, 3\) and \(4, 5\) do not fit .*: k is both 3 and 4"):
        bind("... m k, ... k n -> ... m n", [(2, 3), (4, 5)], "matmul")
    with pytest.raises(ShapeError, match="at least 2 dimensions"):
        bind("... m k, ... k n -> ... m n", [(2, 3), (3,)], "matmul")


def test_what_may_be_sharded() -> None:
    """Not a whole factor, not an inner one of a group, not one that an operand has twice."""
    assert bind("a [k] -> a [k]", [(2, 3)], "softmax").shardable == ("a",)
    split = bind(Form("(h d) -> h d", {"h": 2, "d": 3}), [(6,)], "reshape")
    assert split.shape == (2, 3)
    assert split.shardable == ("h",)
    assert bind("i i -> i", [(4, 4)], "diagonal").shardable == ()
    assert bind("a b -> b", [(2, 3)], "sum").reduced == {"a"}


def test_sizes_that_change() -> None:
    form = Form("a b -> a b", resize={"b": (2, lambda start, stop: max(0, min(stop, 3) - max(start, 1)))})
    assert bind(form, [(5, 4)], "slice").shape == (5, 2)


def test_wrong_number_of_operands_or_dimensions() -> None:
    with pytest.raises(RuleError, match="has 2 operands; got 1"):
        bind("a, a -> a", [(3,)], "f")
    with pytest.raises(ShapeError, match=r"needs an operand of 2 dimensions .*got shape \(3,\)"):
        bind("a b -> a", [(3,)], "f")
    with pytest.raises(ShapeError, match="needs an operand of 1 dimensions"):
        bind("a -> a", [(3, 4)], "f")
    with pytest.raises(ShapeError):
        bind(Form("(h d) -> h d", {"h": 2, "d": 3}), [(7,)], "reshape")
    with pytest.raises(ShapeError):
        bind("1 a -> a", [(2, 3)], "f")


@pytest.mark.parametrize("text", ["m k -> m q", "m (h d) -> m h d"])
def test_a_length_that_no_shape_tells(text: str) -> None:
    with pytest.raises(RuleError, match=r"(?s)no shape tells how long .* Form\('m"):
        bind(text, [(2, 6)], "f")


# Registering


def test_an_operation_needs_a_name() -> None:
    with pytest.raises(RuleError, match="def my_operation"):
        sx.op("m -> m")(lambda xp, x: x)


def test_a_name_is_taken_once_unless_the_same_place_defines_it_again() -> None:
    def define() -> Any:
        @sx.op("... -> ...")
        def twice_defined(xp: Any, x: Any) -> Any:
            """As in a notebook's cell that is run again."""
            return x

        return twice_defined

    assert define() is not define()
    with pytest.raises(RuleError, match="already registered"):

        @sx.op("... -> ...")
        def add(xp: Any, x: Any) -> Any:
            """Another's name."""
            return x


def test_a_body_returns_an_array() -> None:
    @sx.op("m -> m")
    def listed(xp: Any, x: Any) -> Any:
        """No array."""
        return x.tolist()

    with pytest.raises(RuleError, match="a list"):
        listed(sx.asarray(np.ones(3), mesh=sx.make_mesh({"a": 2}, device="sim")))
