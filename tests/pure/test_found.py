"""Small inputs that once went wrong, by what was wrong with them. Exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx

MESH = sx.make_mesh({"a": 2, "b": 2}, device="sim")
SHARD, SUM = sx.Shard, sx.Partial("sum")


def place(value: Any, **axes: Any) -> sx.Array:
    return sx.asarray(value, mesh=MESH, placement=axes)


# Values and dtypes


@pytest.mark.parametrize("dtypes", [("int8",), ("bool",), ("int8", "float16"), ("int8", "int8", "int64")])
def test_einsum_keeps_the_dtype_that_its_operands_promote_to(dtypes: tuple[str, ...]) -> None:
    operands = [np.full((2, 3), 100).astype(d) for d in dtypes]
    subscripts = f"{','.join(['ij'] * len(operands))}->i"
    found = sx.einsum(subscripts, *(place(x, a=SHARD(1)) for x in operands)).numpy()
    want = np.einsum(subscripts, *operands)
    assert found.dtype == want.dtype and np.array_equal(found, want)


def test_einsum_sums_a_letter_of_one_operand_in_the_common_dtype() -> None:
    x, y = np.full((2, 3), 100, np.int8), np.ones(2, np.int64)
    found = sx.einsum("ij,i->i", place(x, a=SHARD(1)), place(y)).numpy()
    assert found.tolist() == [300, 300] and found.dtype == np.int64


@pytest.mark.parametrize("how", ["multiply", "min", "max"])
def test_gradients_of_combining_with_a_slice(how: str) -> None:
    x, u = place(np.array([1.0, 5.0, 2.0, 2.0]), a=SHARD(0)), place(np.array([3.0, 2.0]), b=SUM)
    of_x, of_u = sx.grad(lambda x, u: getattr(x.at[1::2], how)(u).sum(), (0, 1))(x, u)
    want = {
        "multiply": ([1, 3, 1, 2], [5, 2]),
        "min": ([1, 0, 1, 0.5], [1, 0.5]),
        "max": ([1, 1, 1, 0.5], [0, 0.5]),
    }[how]
    assert of_x.numpy().tolist() == want[0] and of_u.numpy().tolist() == want[1]


@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16"])
@pytest.mark.parametrize("index", [np.s_[1:2], np.s_[1], np.array([1, 1]), np.s_[::2, np.array([0])]])
def test_adding_at_an_index_leaves_the_other_elements_alone(index: Any, dtype: str) -> None:
    value = -np.zeros((4, 3), getattr(sx, dtype))
    want = value.copy()
    np.add.at(want, index, want[0, 0])
    for axes in ({"a": SHARD(0)}, {"a": SUM, "b": SHARD(1)}):
        found = place(value, **axes).at[index].add(place(want[0, 0], b=SUM)).numpy()
        assert found.tobytes() == want.tobytes()


# What Python does with an array


def test_contains_is_whether_any_element_equals() -> None:
    x = place(np.arange(6.0).reshape(2, 3), a=SHARD(1), b=SUM)
    assert 4.0 in x and 9.0 not in x


def test_a_number_is_formatted_as_python_does() -> None:
    loss = place(2.25, a=SUM)
    assert f"{loss:.1f}" == "2.2"
    with sx.debug.trace() as t:
        assert "float64[]" in f"{loss}"
    assert not t
    with pytest.raises(TypeError):
        f"{place(np.ones(3)):.1f}"


def test_divmod() -> None:
    quotient, rest = divmod(place(np.array([7, -7]), a=SHARD(0)), 3)
    assert quotient.numpy().tolist() == [2, -3] and rest.numpy().tolist() == [1, 2]
    assert divmod(7, place(np.array([2])))[1].numpy().tolist() == [1]


def test_what_at_is_prints() -> None:
    x = place(np.ones(3), a=SHARD(0))
    assert "float64[3]" in repr(x.at) and "(1,)" in repr(x.at[1])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: sx.round(x, "a"),  # type: ignore[arg-type]
        lambda x: sx.round(x, 1.5),  # type: ignore[arg-type]
        lambda x: sx.einsum(3, x),
        lambda x: sx.einsum(x, x, [0, 1]),
        lambda x: sx.einsum(x),
    ],
)
def test_what_rounds_nothing_and_sums_nothing_sends_nothing(wrong: Callable[[sx.Array], sx.Array]) -> None:
    """An error that says what to write, before any message."""
    x = place(np.ones((2, 3)), a=SHARD(1))
    with sx.debug.trace() as t, pytest.raises(sx.SpmdxError, match="Write"):
        wrong(x)
    assert not t
