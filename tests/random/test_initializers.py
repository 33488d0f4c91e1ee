"""First values: the same wherever the pieces lie (exact), with the variance of the global shape's fans (close)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from placements import assembled, simulated, specs

import spmdx as sx
from spmdx import random
from spmdx.nn import initializers as init
from spmdx.spec import place

KEY = random.key(23)
NAMED = {
    "glorot_uniform": lambda i, o: 2 / (i + o),
    "glorot_normal": lambda i, o: 2 / (i + o),
    "he_uniform": lambda i, o: 2 / i,
    "he_normal": lambda i, o: 2 / i,
    "lecun_uniform": lambda i, o: 1 / i,
    "lecun_normal": lambda i, o: 1 / i,
}
EVERY: dict[str, Any] = {
    **{name: getattr(init, name)() for name in NAMED},
    "normal": init.normal(0.5),
    "truncated_normal": init.truncated_normal(0.5, -1.0, 3.0),
    "uniform": init.uniform(2.0),
    "zeros": init.zeros,
    "ones": init.ones,
    "constant": init.constant(3.5),
    "orthogonal": init.orthogonal(),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2)], ids=str)
def test_wherever_the_pieces_lie(name: str, sizes: tuple[int, ...]) -> None:
    for shape in ((5, 4), (2, 3, 4)):
        want = EVERY[name](KEY, shape).numpy()
        assert want.dtype == np.float64
        for spec in specs(simulated(*sizes), shape, ops=("sum",)):
            got = EVERY[name](KEY, shape, mesh=spec.mesh, placement=spec.placement)
            assert got.spec is place(spec.mesh, shape, np.float64, spec.placement)
            assert assembled(got.spec, got._block).tobytes() == want.tobytes(), spec


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [np.float16, sx.bfloat16, np.float32])
def test_dtypes(name: str, dtype: Any) -> None:
    got = EVERY[name](KEY, (6, 4), dtype)
    assert got.dtype == dtype
    assert EVERY[name](KEY, (6, 4), dtype=dtype).numpy().tobytes() == got.numpy().tobytes()


@pytest.mark.parametrize("name", NAMED)
def test_variance(name: str) -> None:
    """Within 5% of the named variance; uniforms and truncated normals stay in their bounds."""
    for shape, axes, fans in [
        ((200, 300), {}, (200, 300)),
        ((300, 200), {"in_axis": -1, "out_axis": -2}, (200, 300)),
        ((3, 3, 60, 90), {}, (540, 810)),
        ((4, 100, 150), {"batch_axis": 0}, (100, 150)),
        ((10, 20, 30, 5), {"in_axis": (0, 1), "out_axis": (2, 3)}, (200, 150)),
    ]:
        x = getattr(init, name)(**axes)(KEY, shape).numpy()
        variance = NAMED[name](*fans)
        assert abs(x.var() / variance - 1) < 0.05, (name, shape)
        bound = math.sqrt(3 * variance) if "uniform" in name else 2 * math.sqrt(variance) / init.TWO
        assert abs(x).max() <= bound
        assert abs(x.mean()) < 5 * math.sqrt(variance / x.size)


def test_fans() -> None:
    assert init.fans((3, 4)) == (3, 4)
    assert init.fans((5, 5, 3, 4)) == (75, 100)
    assert init.fans((7, 3, 4), batch_axis=0) == (3, 4)
    assert init.fans((4,), in_axis=(), out_axis=0) == (1, 4)


def test_variance_scaling_modes() -> None:
    for mode, n in (("fan_in", 100), ("fan_out", 400), ("fan_avg", 250), ("fan_geo_avg", 200)):
        x = init.variance_scaling(3.0, mode, "normal")(KEY, (100, 400)).numpy()
        assert abs(x.var() * n / 3 - 1) < 0.05


def test_named_after_others() -> None:
    assert init.xavier_normal is init.glorot_normal
    assert init.kaiming_uniform is init.he_uniform


@pytest.mark.parametrize(
    ("shape", "column"), [((6, 4), -1), ((4, 6), -1), ((5, 5), 0), ((2, 3, 4), 1), ((7, 2, 2), -1)]
)
def test_orthogonal(shape: tuple[int, ...], column: int) -> None:
    """Close to 1e-14: orthonormal rows or columns, whichever are fewer; scaled."""
    x = init.orthogonal(2.0, column)(KEY, shape).numpy()
    matrix = np.moveaxis(x, column, -1).reshape(-1, shape[column])
    small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-14)


def test_in_a_model() -> None:
    made = sx.nn.init({"w": sx.nn.Param((8, 6), init.he_normal()), "b": sx.nn.Param((6,), init.zeros)}, KEY)
    assert abs(made["w"].numpy()).max() > 0
    assert not made["b"].numpy().any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: init.he_normal()(KEY, (3,)), sx.errors.ShapeError, r"shape \(3,\)[\s\S]*2 dimensions or more"),
        (lambda: init.he_normal(in_axis=-1)(KEY, (3, 4)), sx.errors.ArgumentError, r"name a dimension twice"),
        (lambda: init.variance_scaling(1.0, "fan", "normal"), sx.errors.ArgumentError, r'mode \'fan\'[\s\S]*"fan_in"'),
        (lambda: init.variance_scaling(1.0, "fan_in", "flat"), sx.errors.ArgumentError, r"'flat'[\s\S]*\"uniform\""),
        (lambda: init.orthogonal()(KEY, (3,)), sx.errors.ShapeError, r"makes matrices; got shape \(3,\)"),
    ],
)
def test_errors(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
