"""add_norm: exactly what dropout, the addition to the stream and the norm give one after another, gradients too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from helpers import FOUR, TWO, close, draw, everywhere, put, slope, verbs

import spmdx as sx
from spmdx import nn
from spmdx.mesh import Mesh
from spmdx.runtime import kernels

SHAPE = (3, 4, 6)
X, RESIDUAL, SCALE, BIAS, ADDED = (draw(*s, seed=i) for i, s in enumerate((SHAPE, SHAPE, (6,), (6,), (6,))))
KEY = sx.random.key(7)
# scale, bias, added, rate, centered
FORMS = [
    (True, True, True, 0.1, True),
    (True, True, True, 0.0, True),
    (False, True, False, 0.1, True),
    (True, False, True, 0.1, False),
    (False, False, False, 0.0, False),
]
each_form = pytest.mark.parametrize("form", FORMS)


def apart(x: Any, residual: Any, scale: Any, bias: Any, added: Any, rate: float, centered: bool) -> Any:
    """What add_norm means."""
    y = x if added is None else x + added
    stream = residual + (nn.dropout(KEY, y, rate) if rate else y)
    return stream, nn.layer_norm(stream, scale, bias) if centered else nn.rms_norm(stream, scale)


def fused(x: Any, residual: Any, scale: Any, bias: Any, added: Any, rate: float, centered: bool) -> Any:
    key = KEY if rate else None
    return nn.add_norm(x, residual, scale, bias, added=added, key=key, rate=rate, centered=centered)


def of(form: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """As a function of the arrays that a form takes."""

    def run(*given: Any) -> Any:
        rest = iter(given[2:])
        return function(*given[:2], *(next(rest) if has else None for has in form[:3]), *form[3:])

    return run


def given(form: Any, *arrays: Any) -> list[Any]:
    return [*arrays[:2], *(a for a, has in zip(arrays[2:], form[:3]) if has)]


def losses(function: Callable[..., Any], which: str = "both") -> Callable[..., Any]:
    """Of the stream, of its norm or of both, each element with its own weight."""

    def loss(*args: Any) -> Any:
        parts = zip(("stream", "norm"), function(*args), (8, 9))
        return sum((y * put(draw(*y.shape, seed=i), y.mesh)).sum() for name, y, i in parts if which in (name, "both"))

    return loss


def gradients(function: Callable[..., Any], args: Any, which: str = "both") -> Any:
    return sx.grad(losses(function, which), argnums=tuple(range(len(args))))(*args)


def same(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.numpy().tobytes() == b.numpy().tobytes()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The passes that are made."""
    passes: list[str] = []

    def seen(name: str, kernel: Any, *args: Any) -> None:
        passes.append(name)
        kernel(*args)

    with monkeypatch.context() as patch:
        for name in ("add_norm", "add_norm_back"):
            patch.setattr(kernels.HOST.build, name, partial(seen, name, getattr(kernels.HOST.build, name)))
        yield passes


@each_form
def test_wherever_the_pieces_lie(form: Any) -> None:
    """The placements of one array of the two; what is Partial is finished first."""
    arrays = given(form, X, RESIDUAL, SCALE, BIAS, ADDED)
    want = of(form, apart)(*map(put, arrays))
    slopes = gradients(of(form, apart), list(map(put, arrays)))
    three = [put(X, Mesh(("a",), (3,), None, "sim"), a=p) for p in (sx.Shard(0), sx.Shard(1), sx.Partial())]
    for x in [*everywhere(X), *three]:
        rest = [put(a, x.mesh) for a in arrays[1:]]
        got = of(form, fused)(x, *rest)
        whole = x.redistribute(**dict.fromkeys(x.spec.partial, sx.Replicate())) if x.spec.partial else x
        same(got, of(form, apart)(whole, *rest))
        for a, b in zip(got, want):
            close(a, b.numpy())
        found = gradients(of(form, fused), [x, *rest])
        same(found, gradients(of(form, apart), [whole, *rest]))
        for g, w in zip(found, slopes):
            close(g, w.numpy())


def test_partial_is_sent_once() -> None:
    for x, residual in product((put(X, TWO), put(X, TWO, a=sx.Partial())), (put(RESIDUAL, TWO), put(RESIDUAL, TWO))):
        with sx.debug.trace() as trace:
            nn.add_norm(x, residual, added=put(ADDED, TWO))
        assert verbs(trace) == ["all_reduce"] * bool(x.spec.partial)
    x, residual = (put(a, FOUR, a=sx.Shard(0), b=sx.Shard(1)) for a in (X, RESIDUAL))
    with sx.explicit(), sx.debug.trace() as trace:
        nn.add_norm(x, residual, put(SCALE, FOUR), put(BIAS, FOUR), key=KEY, rate=0.5)
    assert not trace


@each_form
def test_against_numpy(form: Any) -> None:
    scale, bias, added = (a if has else z for a, z, has in zip((SCALE, BIAS, ADDED), (1, 0, 0), form))
    rate, centered = form[3:]
    kept = sx.random.bernoulli(KEY, SHAPE, 1 - rate).numpy() / (1 - rate)
    stream = RESIDUAL + (X + added) * kept
    low = stream - stream.mean(-1, keepdims=True) * centered
    normed = low / np.sqrt((low * low).mean(-1, keepdims=True) + (1e-5 if centered else 1e-6)) * scale + bias
    for got, want in zip(of(form, fused)(*map(put, given(form, X, RESIDUAL, SCALE, BIAS, ADDED))), (stream, normed)):
        close(got, want)


@each_form
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_in_one_pass(form: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls seen before are made together, there and back, and give what they gave one by one."""
    arrays = [sx.asarray(draw(*s, seed=i).astype(dtype)) for i, s in enumerate(((3, 90, 32),) * 2 + ((32,),) * 3)]
    arrays = given(form, *arrays)
    for which in ("both", "stream", "norm"):
        wanted = [*of(form, apart)(*arrays), *gradients(of(form, apart), arrays, which)]
        same([*of(form, fused)(*arrays), *gradients(of(form, fused), arrays, which)], wanted)  # maybe one by one
        with counted(monkeypatch) as passes:
            same([*of(form, fused)(*arrays), *gradients(of(form, fused), arrays, which)], wanted)
        back = ["add_norm_back"] * (which != "stream")
        assert passes == ([] if dtype == "float16" else ["add_norm", "add_norm", *back])
    with counted(monkeypatch) as passes:  # what is saved and made again has one number of calls
        same(gradients(sx.remat(of(form, fused)), arrays), gradients(of(form, apart), arrays))
    if dtype == "float64":
        size = lambda f: lambda *a: sum((g * g).sum() for g in gradients(of(form, f), a))  # noqa: E731
        numbers = tuple(range(len(arrays)))
        for g, w in zip(sx.grad(size(fused), numbers)(*arrays), sx.grad(size(apart), numbers)(*arrays)):
            close(g, w.numpy(), 1e-9)


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2)])
def test_on_ranks(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows divided, also unevenly and so that some have none; every rank draws its own part of the mask."""
    names = "ab"[: len(sizes)]
    arrays = [draw(*s, seed=i).astype("float32") for i, s in enumerate(((5, 7, 32),) * 2 + ((32,),) * 3)]
    places: list[dict[str, Any]] = [{}, {"a": sx.Shard(0)}, {"a": sx.Shard(1)}, {names[-1]: sx.Shard(2)}]
    places += [{"a": sx.Shard(0), "b": sx.Shard(1)}] * (len(sizes) == 2)

    def ranks() -> None:
        mesh = sx.make_mesh(dict(zip(names, sizes)))
        for place, rows, form in product(places, (5, 1), FORMS[:4]):
            some = [sx.asarray(a[:rows], mesh=mesh, placement=place) for a in arrays[:2]]
            some = given(form, *some, *(sx.asarray(a, mesh=mesh) for a in arrays[2:]))
            want = [*of(form, apart)(*some), *gradients(of(form, apart), some)]
            for _ in range(2):
                same([*of(form, fused)(*some), *gradients(of(form, fused), some)], want)

    with counted(monkeypatch) as passes:
        sx.testing.spmd(int(np.prod(sizes)))(ranks)()
    assert passes.count("add_norm") > passes.count("add_norm_back") > 0


def test_gradients_by_differences() -> None:
    for form in FORMS:
        arrays = given(form, X, RESIDUAL, SCALE, BIAS, ADDED)
        for which in ("both", "norm"):
            found = gradients(of(form, fused), list(map(put, arrays)), which)
            for i, g in enumerate(found):
                at_values = lambda *a: float(losses(of(form, fused), which)(*map(put, a)))  # noqa: B023, E731
                close(g, slope(at_values, arrays, i), 1e-7)


def test_gradients_of_gradients() -> None:
    form, arrays = FORMS[0], [draw(2, 16, seed=0), draw(2, 16, seed=1), *(draw(16, seed=i) for i in range(2, 5))]

    def size(*args: Any) -> Any:
        return sum((g * g).sum() for g in gradients(of(form, fused), args))

    for _ in range(2):  # one by one, and in one pass
        found = sx.grad(size, argnums=tuple(range(5)))(*map(sx.asarray, arrays))
        for i, g in enumerate(found):
            close(g, slope(lambda *a: float(size(*map(sx.asarray, a))), arrays, i, 1e-5), 1e-6)


def test_of_each_example() -> None:
    x, residual = sx.asarray(X), sx.asarray(RESIDUAL)
    for _ in range(2):
        found = sx.vmap(lambda x, r: nn.add_norm(x, r, SCALE, BIAS, added=ADDED))(x, residual)
        for got, want in zip(found, nn.add_norm(x, residual, SCALE, BIAS, added=ADDED)):
            close(got, want.numpy())


def test_its_key_is_used_up_once() -> None:
    with sx.debug.check_keys():
        sx.grad(lambda x: sum(y.sum() for y in nn.add_norm(x, X, key=KEY, rate=0.5)))(sx.asarray(X))
        with pytest.raises(sx.errors.KeyReuseError):
            nn.add_norm(sx.asarray(X), X, key=KEY, rate=0.5)
        nn.add_norm(sx.asarray(X), X, key=KEY, rate=0)  # draws nothing


def test_what_is_refused() -> None:
    x, narrow = sx.asarray(X), sx.asarray(X[..., :5])
    wrong: list[tuple[type[Exception], Callable[[], Any], str]] = [
        (sx.errors.ArgumentError, lambda: nn.add_norm(x, x, rate=0.1), r"needs a key[\s\S]*key=key, rate=0.1"),
        (sx.errors.ArgumentError, lambda: nn.add_norm(x, x, key=KEY, rate=2), "between 0 and 1"),
        (sx.errors.ArgumentError, lambda: nn.add_norm(x, x, None, SCALE, centered=False), "has no bias"),
        (sx.errors.DtypeError, lambda: nn.add_norm(x, x, key=3, rate=0.1), "drawn with a key"),
        (sx.errors.ShapeError, lambda: nn.add_norm(x, narrow), r"same shape[\s\S]*x, h = add_norm"),
        (sx.errors.ShapeError, lambda: nn.add_norm(sx.asarray(1.0), sx.asarray(1.0)), "same shape"),
        (sx.errors.ShapeError, lambda: nn.add_norm(x, x, SCALE[:5]), r"scale is a vector[\s\S]*shape \(6,\)"),
        (sx.errors.ShapeError, lambda: nn.add_norm(x, x, added=X), r"added is a vector[\s\S]*shape \(6,\)"),
    ]
    for error, call, message in wrong:
        with pytest.raises(error, match=message):
            call()
