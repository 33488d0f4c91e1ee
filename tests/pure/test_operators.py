"""Python's operators, and the methods and properties of arrays."""

from __future__ import annotations

import copy
import operator
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx.mesh import Mesh
from spmdx.ops import operators  # noqa: F401  # attaches them

A = np.array([[7.0, 2.0, -3.0], [0.5, -5.0, 4.0]])
B = np.array([[2.0, 3.0, 2.0], [-1.0, 2.0, 0.5]])
SIMULATED = Mesh(("p",), (2,), None, "sim")

ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne")
BITS = ("and_", "or_", "xor", "lshift", "rshift")


def divided(value: Any, placement: Any = None) -> Any:
    return sx.asarray(value, mesh=SIMULATED, placement={"p": placement or sx.Shard(0)})


def check(name: str, a: Any, b: Any) -> None:
    """Exact, with the array left, right, or on both sides."""
    function = getattr(operator, name)
    want = function(a, b)
    for got in (function(divided(a), divided(b)), function(divided(a), b), function(a, divided(b))):
        assert isinstance(got, sx.Array)
        assert got.dtype == want.dtype and np.array_equal(got.numpy(), want), name


@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary_operators(name: str) -> None:
    check(name, A, B)


def test_matmul() -> None:
    """Close to 1e-14."""
    for got in (divided(A) @ divided(B.T), divided(A) @ B.T, A @ divided(B.T)):
        assert np.allclose(got.numpy(), A @ B.T, 1e-14, 0)


@pytest.mark.parametrize("name", BITS)
def test_operators_of_integers(name: str) -> None:
    check(name, np.array([[6, 5], [3, 1]]), np.array([[3, 1], [2, 0]]))


@pytest.mark.parametrize("name", [*ARITHMETIC, "pow"])
@pytest.mark.parametrize("scalar", [2, 2.5, True, np.float32(2), np.int8(2)])
def test_operators_with_scalars(name: str, scalar: Any) -> None:
    function = getattr(operator, name)
    for a in (A, A.astype("float32"), (abs(A) + 1).astype("int8")):
        with np.errstate(all="ignore"):
            pairs = [
                (function(divided(a), scalar), function(a, scalar)),
                (function(scalar, divided(a)), function(scalar, a)),
            ]
        for got, want in pairs:
            assert got.dtype == want.dtype
            assert np.allclose(got.numpy(), want, 1e-6, 0, equal_nan=True)


def test_unary_operators() -> None:
    for function in (operator.neg, operator.pos, operator.abs):
        assert np.array_equal(function(divided(A)).numpy(), function(A))
    whole = np.array([3, -2])
    assert np.array_equal((~divided(whole)).numpy(), ~whole)


def test_a_square_is_a_product() -> None:
    """Exact: pow's last bit may differ."""
    x = np.random.default_rng(0).normal(size=1000)
    assert np.array_equal((sx.asarray(x) ** 2).numpy(), x**2)


def test_an_update_makes_a_new_array() -> None:
    x = before = divided(A)
    x += 1
    assert np.array_equal(before.numpy(), A) and np.array_equal(x.numpy(), A + 1)


def test_python_numbers() -> None:
    one = divided(np.array([2.5]), sx.Partial("sum"))
    assert float(one) == 2.5 and complex(one) == 2.5 and int(one) == 2 and bool(one) and one.item() == 2.5
    assert type(one.item()) is float
    assert [10, 20, 30][sx.asarray(1)] == 20 and range(5)[sx.asarray(-1)] == 4
    with pytest.raises(ValueError, match="one element"):
        float(divided(A))
    with pytest.raises(TypeError, match="0-d integer"):
        [1, 2][sx.asarray(1.0)]
    with pytest.raises(TypeError):
        float(sx.asarray(1j))


def test_numpy_gets_the_global_value() -> None:
    for placement in (sx.Shard(0), sx.Shard(1), sx.Replicate(), sx.Partial("sum")):
        assert np.array_equal(np.asarray(divided(A, placement)), A)
    assert np.asarray(divided(A), dtype="float32").dtype == np.float32
    assert divided(A).tolist() == A.tolist()
    with pytest.raises(sx.SpmdxError, match=r"x\.block"):
        np.array(divided(A), copy=False)


def test_methods_and_properties() -> None:
    x = divided(A)
    assert x.nbytes == A.nbytes and x.itemsize == 8 and len(x) == 2
    assert np.array_equal(x.clip(-1, 2).numpy(), A.clip(-1, 2))
    assert np.array_equal(x.round().numpy(), A.round()) and np.array_equal(x.conj().numpy(), A)
    assert np.array_equal((x * 1j).imag.numpy(), A) and np.array_equal((x * 1j).real.numpy(), A * 0)
    assert [row.numpy().tolist() for row in x] == A.tolist()
    assert np.array_equal(x.T.numpy(), A.T) and np.array_equal(x.mT.numpy(), A.T)
    for name in ("sum", "prod", "mean", "var", "std", "min", "max", "any", "all", "argmin", "argmax"):
        assert np.allclose(getattr(x, name)(axis=1).numpy(), getattr(A, name)(axis=1), 1e-14), name
        assert np.allclose(getattr(x, name)().numpy(), getattr(A, name)(), 1e-14), name
    assert copy.deepcopy(x) is x and x.to_device("sim") is x
    with pytest.raises(sx.SpmdxError, match=r"x\.to\(mesh, placement\)"):
        x.to_device("cuda")


def test_arrays_are_hashed_by_identity() -> None:
    x = divided(A)
    assert {x: 1}[x] == 1 and hash(x) != hash(divided(A))


def test_writing_into_an_array_names_the_line_to_write() -> None:
    x = divided(A)
    for index in (0, x > 0, ...):
        with pytest.raises(sx.SpmdxError, match=r"never change(.|\n)*Write x = x\.at\[\.\.\.\]\.set") as raised:
            x[index] = 1.0
        assert isinstance(raised.value, TypeError)


def test_namespace() -> None:
    assert sx.asarray(A).__array_namespace__() is sx
    assert sx.asarray(A).__array_namespace__(api_version="2024.12") is sx
    with pytest.raises(ValueError, match=r"2024\.12"):
        sx.asarray(A).__array_namespace__(api_version="1900.01")


def test_dlpack_gives_the_block_read_only() -> None:
    x = sx.asarray(A)
    out = np.from_dlpack(x)
    assert np.shares_memory(out, x.block) and not out.flags.writeable and x.__dlpack_device__() == (1, 0)
    with pytest.raises(sx.SpmdxError, match=r"x\.redistribute"):
        np.from_dlpack(divided(A))
