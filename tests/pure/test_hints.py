"""What a newcomer writes first, and what the error says to write instead."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spmdx as sx
from spmdx import check
from spmdx.ops import missing
from spmdx.runtime import kernels
from spmdx.testing import spmd

SIM = sx.make_mesh({"p": 2}, device="sim")
ROWS = {"p": sx.Shard(0)}
A = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])


def x() -> sx.Array:
    return sx.asarray(A, mesh=SIM, placement=ROWS)


def says(call: Callable[[], Any], error: type[BaseException], *words: str) -> None:
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    assert not [w for w in words if w not in text], text


def add_into() -> Any:
    a = A.copy()
    a += x()
    return a


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: sx.make_mesh(4), "Write sx.make_mesh({'data': 4})"),
        (lambda: sx.make_mesh((2, 2)), "Write sx.make_mesh({'data': 2, 'model': 2})"),
        (lambda: sx.make_mesh((2, 3), ("a", "b")), "Write sx.make_mesh({'a': 2, 'b': 3})"),
        (lambda: sx.make_mesh(4, "a"), "Write sx.make_mesh({'a': 4})"),
        (lambda: sx.make_mesh("a"), "Write sx.make_mesh({'a': -1})"),
        (lambda: sx.from_block(A, ROWS, mesh=SIM), "Write from_block([block of rank 0, block of rank 1, ...]"),
        (lambda: sx.from_block([A], ROWS, mesh=SIM), "all its 2 ranks; got 1 of them"),
        (lambda: sx.zeros(4, placement=ROWS), "mesh= (or `with use_mesh(mesh):`"),
        (lambda: x() + sx.ones(3, placement={"world": sx.Shard(0)}), "mesh=x.mesh where y is made, `with use_mesh"),
    ],
)
def test_meshes_and_blocks(call: Any, line: str) -> None:
    says(call, ValueError, line)


# Names


def test_missing_names_say_what_to_write() -> None:
    says(lambda: sx.random.rand, AttributeError, "no attribute 'rand'", "Write sx.random.uniform(key, shape), or rng")
    says(lambda: sx.random.hypergeometric, AttributeError, "Write a function of sx.random.uniform(key, shape), or")
    says(lambda: sx.median, AttributeError, "no attribute 'median'", "Write sx.sort(x, axis=0)[len(x) // 2]")
    says(lambda: sx.linalg.solve(1), AttributeError, "Write np.linalg.solve(a.numpy(), b.numpy())")
    says(lambda: sx.lstsq, AttributeError, "Write np.linalg.lstsq(x.numpy()), where the value fits one rank")
    says(lambda: sx.allreduce, sx.SpmdxError, "Write sx.sum(x, axis)")
    says(lambda: sx.meen, AttributeError, "module 'spmdx' has no attribute 'meen'")
    assert not hasattr(sx, "median") and not hasattr(sx, "__wrapped__")


def test_missing_attributes_say_what_to_write() -> None:
    says(
        lambda: x().fill(0),
        AttributeError,
        "'Array' object has no attribute 'fill'",
        "Write x = sx.full_like(x, value)",
    )
    says(lambda: x().put(0, 1), AttributeError, "Write x = x.at[index].set(values)")
    says(lambda: x().tobytes(), sx.SpmdxError, "Write x.numpy().tobytes, of the global value")
    says(lambda: x().foo, AttributeError, "'Array' object has no attribute 'foo'")
    assert not hasattr(x(), "__array_interface__") and not hasattr(x(), "fill")
    assert not [name for name in missing.METHODS if name in dir(sx.Array)]


def test_the_truth_of_many() -> None:
    says(lambda: bool(x() > 0), ValueError, "neither true nor false", "Write sx.all(x) or sx.any(x)")


def test_no_hint_is_for_a_name_that_exists() -> None:
    assert not [name for name in missing.INSTEAD if name in dir(sx)]


def test_dir_lists_what_there_is() -> None:
    names = dir(sx)
    assert {"array", "concatenate", "nn", "optim", "random", "errors", "P"} <= set(names)
    assert not {"median", "context", "propagate", "tape", "_importlib", "_LATER"} & set(names)
    for name in names:
        getattr(sx, name)


WITH: dict[str, Any] = {
    "sx": sx,
    "math": math,
    "x": np.array([2.5, -0.5, 0.0, 7.0, 1.25]),
    "y": np.array([1.5, 0.5, -2.0, 3.0, -1.0]),
    "q": 0.5,
    "edges": np.array([-1.0, 0.0, 1.0, 4.0, 7.0]),
    "xs": np.array([-1.0, 0.5, 3.0, 8.0]),
    "ys": np.array([2.0, -1.0, 4.0, 0.0]),
    "values": np.array([7.0, 0.0]),
    "mask": np.array([True, False, True, True, False]),
    "c": np.array([1.0, -2.0, 3.0]),
    "h": 0.5,
    "start": 1.0,
    "stop": 5.0,
    "num": 4,
    "n": 5,
    "dx": 1.0,
}
Z = np.array([[1.0, 2.0, 4.0, -1.0], [0.5, -3.0, 2.0, 2.0]])
SAME: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {  # what the line is to give; other values for its names
    "median": (lambda v: np.median(v["x"]), {}),
    "quantile": (lambda v: np.quantile(v["x"], 0.5), {}),
    "percentile": (lambda v: np.percentile(v["x"], 25), {"p": 25}),
    "isin": (lambda v: np.isin(v["x"], v["values"]), {}),
    "bincount": (lambda v: np.bincount(v["x"]), {"x": np.array([1, 3, 1, 4, 0])}),
    "histogram": (lambda v: np.histogram(v["x"], v["edges"])[0], {}),
    "digitize": (lambda v: np.digitize(v["x"], v["edges"]), {}),
    "cov": (lambda v: np.cov(v["x"]), {"x": Z}),
    "corrcoef": (lambda v: np.corrcoef(v["x"]), {"x": Z}),
    "nansum": (lambda v: np.nansum(v["x"]), {"x": np.array([1.0, np.nan, 2.0])}),
    "nanmean": (lambda v: np.nanmean(v["x"]), {"x": np.array([1.0, np.nan, 2.0])}),
    "nanmax": (lambda v: np.nanmax(v["x"]), {"x": np.array([1.0, np.nan, 2.0])}),
    "nanmin": (lambda v: np.nanmin(v["x"]), {"x": np.array([1.0, np.nan, 2.0])}),
    "interp": (lambda v: np.interp(v["x"], v["xs"], v["ys"]), {}),
    "gradient": (lambda v: np.gradient(v["x"])[1:-1], {}),
    "ediff1d": (lambda v: np.ediff1d(v["x"]), {}),
    "trapezoid": (lambda v: np.trapezoid(v["y"]), {}),
    "polyval": (lambda v: np.polyval(v["c"], v["x"]), {}),
    "vander": (lambda v: np.vander(v["x"], 5, increasing=True), {}),
    "cbrt": (lambda v: np.cbrt(v["x"]), {}),
    "exp2": (lambda v: np.exp2(v["x"]), {}),
    "fabs": (lambda v: np.fabs(v["x"]), {}),
    "fmax": (lambda v: np.fmax(v["x"], v["y"]), {"x": np.array([1.0, np.nan, 2.0]), "y": np.array([3.0, 1.0, np.nan])}),
    "fmin": (lambda v: np.fmin(v["x"], v["y"]), {"x": np.array([1.0, np.nan, 2.0]), "y": np.array([3.0, 1.0, np.nan])}),
    "fmod": (lambda v: np.fmod(v["x"], v["y"]), {}),
    "heaviside": (lambda v: np.heaviside(v["x"], 0.5), {}),
    "sinc": (lambda v: np.sinc(v["x"]), {}),
    "deg2rad": (lambda v: np.deg2rad(v["x"]), {}),
    "rad2deg": (lambda v: np.rad2deg(v["x"]), {}),
    "rint": (lambda v: np.rint(v["x"]), {}),
    "fix": (lambda v: np.fix(v["x"]), {}),
    "modf": (lambda v: np.stack(np.modf(v["x"])), {}),
    "logspace": (lambda v: np.logspace(1.0, 5.0, 4), {}),
    "geomspace": (lambda v: np.geomspace(1.0, 5.0, 4), {}),
    "angle": (lambda v: np.angle(v["z"]), {"z": np.array([1 + 1j, -2j, -1 + 0j])}),
    "atleast_2d": (lambda v: np.atleast_2d(v["x"]), {}),
    "rot90": (lambda v: np.rot90(v["x"]), {"x": Z}),
    "hsplit": (lambda v: np.stack(np.hsplit(v["x"], 2)), {"x": Z, "parts": 2}),
    "vsplit": (lambda v: np.stack(np.vsplit(v["x"], 2)), {"x": Z, "parts": 2}),
    "block": (lambda v: np.block([[v["a"], v["b"]], [v["c"], v["d"]]]), {n: Z * i for i, n in enumerate("abcd")}),
    "insert": (lambda v: np.insert(v["x"], 2, v["values"]), {"i": 2}),
    "delete": (lambda v: np.delete(v["x"], 2), {"i": 2}),
    "compress": (lambda v: np.compress(v["mask"], v["x"]), {}),
    "unique": (lambda v: np.unique(v["x"]), {}),
}


@pytest.mark.parametrize("name", SAME)
def test_the_line_to_write_is_numpys_function(name: str) -> None:
    """Close to 1e-14."""
    want, changed = SAME[name]
    given = WITH | changed
    line = missing.INSTEAD[name].partition("   (")[0].partition(", or ")[0]
    *first, last = line.split("; ")
    arrays = {k: sx.asarray(v) if isinstance(v, np.ndarray) else v for k, v in given.items()} | {"np": np}
    exec("\n".join(first), arrays)
    found = eval(last, arrays)
    found = np.stack([np.asarray(part) for part in found]) if isinstance(found, (tuple, list)) else np.asarray(found)
    np.testing.assert_allclose(found, want(given), 1e-14, 1e-14)


# NumPy's functions


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: np.exp(x()), "Write sx.exp(x)"),
        (lambda: np.negative(x()), "Write sx.negative(x)"),
        (lambda: np.cbrt(x()), "Write sx.sign(x) * sx.abs(x) ** (1 / 3)"),
        (lambda: np.spacing(x()), "Write np.spacing(x.numpy())"),
        (lambda: np.add.reduce(x()), "Write sx.sum(x)"),
        (lambda: np.add.accumulate(x()), "Write sx.cumsum(x)"),
        (lambda: np.subtract.outer(x(), A), "Write sx.subtract(x[:, None], y)"),
        (lambda: np.add.at(x(), 0, 1.0), "Write x.at[index].add(values)"),
        (add_into, "Write y = sx.add(x, ...)"),
        (lambda: np.median(x()), "Write sx.sort(x, axis=0)"),
        (lambda: np.linalg.svd(x()), "Write np.linalg.svd(x.numpy())"),
    ],
)
def test_numpys_functions_take_no_array(call: Any, line: str) -> None:
    """None of them may gather an array behind the user's back."""
    with sx.debug.trace() as t:
        says(call, TypeError, "takes no Array" if call is not add_into else "NumPy array", line)
    assert not t


def test_numpys_functions_with_ours_of_the_same_name() -> None:
    cube = np.arange(12.0).reshape(3, 2, 2)
    for call in (np.linalg.trace, np.linalg.diagonal, np.trace, np.diagonal, np.sum, np.concatenate, np.transpose):
        found = call(sx.asarray(cube))
        assert isinstance(found, sx.Array) and np.array_equal(found.numpy(), call(cube)), call


def test_the_global_value_for_numpy() -> None:
    """np.asarray(x) is a collective like any other: counted, and forbidden inside explicit."""
    with sx.debug.trace() as t:
        assert np.array_equal(np.asarray(x()), A)
    assert t.count() == 1
    with sx.explicit():
        says(lambda: np.asarray(x()), sx.SpmdxError, "explicit", "Write x.redistribute({}).numpy(), or x.block")


def test_what_is_read_more_than_once_is_finished_once() -> None:
    part = sx.asarray(A, mesh=SIM, placement={"p": sx.Partial("sum")})
    for call in (sx.allclose, sx.array_equal):
        with sx.debug.trace() as t:
            assert bool(call(part, A))
        assert t.count() <= 2, t  # the sum, and whether all agree


@pytest.mark.parametrize("dtype", ["float64", "int32"])
def test_an_ndarray_left_of_an_operator(dtype: str) -> None:
    """Exact, and with the ndarray's own dtype: x's operation."""
    import operator as o

    left, right = (abs(A) + 1).astype(dtype), (abs(A[::-1]) + 1).astype(dtype)
    names = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"]
    names += ["and_", "or_", "xor", "lshift", "rshift"] if dtype == "int32" else []
    for f in [getattr(o, name) for name in names]:
        for a in (left, left[0, 0], np.array(2, dtype)):
            found, want = f(a, sx.asarray(right, mesh=SIM, placement=ROWS)), f(a, right)
            assert isinstance(found, sx.Array) and found.dtype == want.dtype and np.array_equal(found.numpy(), want), f
    quotient, rest = divmod(left, sx.asarray(right))
    assert np.array_equal(quotient.numpy(), left // right) and np.array_equal(rest.numpy(), left % right)


# Types that are not arrays


class Foreign:
    """A type of somebody else's, with operators of its own."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


for _name in ("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul", "rand", "ror", "rxor"):
    setattr(Foreign, f"__{_name}__", lambda self, other, name=_name: name)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Foreign, f"__{_name}__", lambda self, other, name=_name: name)


class Deferred:
    """A type that NumPy's arrays leave operators to."""

    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.ones(3)

    def __radd__(self, other: Any) -> str:
        return "radd"


def test_reflected_operators_of_other_types() -> None:
    a, f = x(), Foreign()
    assert [a + f, a - f, a * f, a / f, a // f, a % f, a**f, a @ f, a & f, a | f, a ^ f] == [
        *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul", "rand", "ror", "rxor")
    ]
    assert [a == f, a != f, a < f, a <= f, a > f, a >= f] == ["eq", "ne", "gt", "ge", "lt", "le"]
    assert a + Deferred() == "radd"


def test_comparing_with_none_is_pythons() -> None:
    a = x()
    assert (a == None) is False and (a != None) is True  # noqa: E711
    assert None not in a and 3.0 in a
    for call in (lambda: a + None, lambda: None - a, lambda: a < None, lambda: a @ {}, lambda: divmod(a, None)):
        says(call, TypeError, "support")
    says(lambda: a + None, TypeError, "unsupported operand type(s) for +: 'Array' and 'NoneType'")
    says(lambda: sx.add(a, None), TypeError, "arrays hold numbers")
    says(lambda: a + "1", TypeError, "arrays hold numbers")
    assert np.array_equal(sx.subtract(a, [1, 2, 3]).numpy(), (a - [1, 2, 3]).numpy())
    gradient = sx.grad(lambda v: sx.sum(v * 2 if v != None else v))(a)  # noqa: E711
    assert np.array_equal(gradient.numpy(), np.full_like(A, 2))


# Ranks that disagree, and an old build


def test_ranks_are_told_where_to_read_what_failed() -> None:
    @spmd(2)
    def one_fails() -> str:
        mesh = sx.make_mesh()
        try:
            check.together(mesh, "exp", lambda: 1 // mesh.rank)
        except Exception as error:
            return str(error)
        return ""

    assert one_fails()[1] == "exp raised on rank 0.\n  Write what the message of rank 0 says"


STALE = """
import sys, types
sys.modules["spmdx._kernels"] = types.ModuleType("spmdx._kernels")
import spmdx
"""


def test_an_old_build_of_the_kernels_says_what_to_run() -> None:
    done = subprocess.run([sys.executable, "-c", STALE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "older than the Python sources" in done.stderr and "Write make install" in done.stderr
    assert kernels.__name__ in sys.modules
