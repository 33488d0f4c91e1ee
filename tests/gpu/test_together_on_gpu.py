"""Several operations as one kernel of the device: dropout, the sum with a residual stream and its norm; and Adam.

Against the kernels of the single operations and the CPU's: sums of elements, dropout and Adam exact, norms close.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_kernels_on_gpu import CLOSE, KEYS, MOSTLY_SLOW, close, same
from there import REAL

import spmdx as sx
from spmdx import tree
from spmdx.ops.launched import Launched
from spmdx.runtime import kernels
from spmdx.runtime.gpu import here

stand_in_only = pytest.mark.skipif(REAL, reason="a real device does not tell what it did: the stand-in does")
# Blocks whose last dimension is whole: rows of packs in registers, of one element after another, and long ones.
STREAMS: dict[str, Any] = {
    "packs": ((5, 9, 24), [[(1, 3), (4, 5)], [(2, 8)], [(0, 24)]]),
    "rows": ((900, 40), [[(3, 73)], [(0, 40)]]),
    "odd": ((6, 7, 13), [[(0, 6)], [(1, 3), (5, 7)], [(0, 13)]]),
    "wide": ((4, 1032), [[(1, 4)], [(0, 1032)]]),
    "long": ((3, 16392), [[(2, 3)], [(0, 16392)]]),
    "one": ((4128,), [[(0, 4128)]]),
}


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
@pytest.mark.parametrize("generator", [None, *KEYS])
@pytest.mark.parametrize("block", STREAMS)
def test_add_norm(block: str, generator: str | None, dtype: Any, device: Any) -> None:
    """The stream exact, and the norm as the kernel of norms has it; close to the CPU's in float64."""
    shape, pieces = STREAMS[block]
    draw, xp, on = np.random.default_rng(3), here().xp, kernels.on("cuda")
    own, n = kernels.empty(pieces, np.dtype("f8")).shape, shape[-1]
    x, residual, g, g_stream = (draw.normal(1, 2, own).astype(dtype) for _ in range(4))
    scale, bias, added = (draw.normal(size=n).astype(dtype) for _ in range(3))
    wide = np.float64 if dtype is np.float64 else np.float32
    words = None if generator is None else xp.asarray(np.array(KEYS[generator], np.uint32))
    numbers = kernels.kept_numbers(0.7, wide is np.float64)
    dropped = None if generator is None else (words, shape, pieces, *numbers)

    def dropout(of: Any) -> Any:
        return of if generator is None else kernels.dropout(KEYS[generator], shape, pieces, of, 0.7)

    def plus(a: Any, b: Any) -> Any:
        return (a.astype(wide) + b.astype(wide)).astype(dtype)

    for centered, some in ((True, True), (False, True), (True, False)):
        s, b, a, gs = (v if some else None for v in (scale, bias, added, g_stream))
        ds, db, da, dgs, dx, dr, dg = (None if v is None else xp.asarray(v) for v in (s, b, a, gs, x, residual, g))
        stream, out, plain, back, to_x = (xp.empty(own, np.dtype(dtype)) for _ in range(5))
        Launched(here().launch).add_norm(stream, out, dx, da, dr, ds, db, 1e-3, centered, dropped)
        wanted = plus(residual, dropout(x if a is None else plus(x, a)))
        assert same(stream.get(), wanted)
        on.build.norm(plain, stream, ds, db, 1e-3, centered)
        assert same(out.get(), plain.get())
        exact = [None if v is None else v.astype(np.float64) for v in (wanted, s, b, g)]
        ref = [np.empty(own), *(np.empty(n) for _ in range(2))]
        kernels.HOST.build.norm(ref[0], *exact[:3], 1e-3, centered)
        close(out.get(), ref[0], dtype, 4)
        vectors = [xp.empty(n, np.dtype(dtype)) if some or k == 2 else None for k in range(3)]
        apart = None if dropped is None else to_x
        Launched(here().launch).add_norm_back(back, apart, vectors, stream, ds, dgs, dg, 1e-3, centered, dropped)
        on.build.norm_back(plain, None, None, stream, ds, dg, 1e-3, centered)
        slope = plain.get() if gs is None else plus(gs, plain.get())
        assert same(back.get(), slope)
        assert dropped is None or same(to_x.get(), dropout(slope))
        kernels.HOST.build.norm_back(*ref, exact[0], exact[1], exact[3], 1e-3, centered)
        close(plain.get(), ref[0], dtype, 10)
        for vector, want in zip(vectors, (*ref[1:], dropout(slope).reshape(-1, n).astype(np.float64).sum(0))):
            if vector is not None:
                close(vector.get(), want, dtype, 100)


@stand_in_only
def test_add_norm_is_one_launch(device: Any) -> None:
    """Calls seen before: one launch there; one over rows and two for sums over them back; and nobody waits."""
    mesh, key = sx.make_mesh({"p": 1}, device="cuda"), sx.random.key(3)
    x, residual = (sx.random.normal(sx.random.fold_in(key, i), (4, 10, 32), mesh=mesh, dtype="f4") for i in range(2))
    vectors = [sx.random.normal(sx.random.fold_in(key, 9 + i), (32,), mesh=mesh, dtype="f4") for i in range(3)]

    def loss(x: Any, residual: Any, scale: Any, bias: Any, added: Any) -> Any:
        stream, h = sx.nn.add_norm(x, residual, scale, bias, added=added, key=key, rate=0.25)
        return sx.sum(stream * residual) + sx.sum(h * x)

    for dtype in (np.float32, sx.bfloat16):
        given = [a.astype(dtype) for a in (x, residual, *vectors)]
        slopes = sx.grad(loss, argnums=tuple(range(5)))
        apart = [g.numpy().astype("f8") for g in slopes(*given)]
        device.clear()
        found = slopes(*given)
        assert not device.of("wait")
        names = [name for name, *_ in device.of("launch")]
        assert names == ["add_norm_held", "add_norm_back_held", "add_norm_sums", "add_norm_sum_parts"]
        for g, want in zip(found, apart):
            assert g.dtype == dtype
            bound = CLOSE[np.float32 if dtype is np.float32 else ml_dtypes.bfloat16] * 40
            assert np.abs(g.numpy().astype("f8") - want).max() <= bound * max(1.0, np.abs(want).max())


def test_add_norm_on_two_ranks(device: Any) -> None:
    """Rows divided: every rank draws its own part of the mask, and the values are the CPU's."""
    key, names = sx.random.key(5), ("x", "residual", "scale", "bias", "added")
    draw = np.random.default_rng(1)
    arrays = {n: draw.normal(size=(5, 7, 32) if n in names[:2] else 32).astype("f4") for n in names}

    def values(mesh: Any) -> list[Any]:
        places = [{"p": sx.Shard(0)} if n in names[:2] else None for n in names]
        given = [sx.asarray(arrays[n], mesh=mesh, placement=place) for n, place in zip(names, places)]

        def loss(*of: Any) -> Any:
            stream, h = sx.nn.add_norm(*of[:4], added=of[4], key=key, rate=0.5)
            return sx.sum(stream * of[1]) + sx.sum(h * of[0])

        for _ in range(2):
            found = [*sx.nn.add_norm(*given[:4], added=given[4], key=key, rate=0.5)]
            found += sx.grad(loss, argnums=tuple(range(5)))(*given)
        return [a.numpy() for a in found]

    results: list[Any] = []

    def ranks() -> None:
        both = [values(sx.make_mesh({"p": 2}, device=d)) for d in ("cpu", "cuda")]
        results.append(both)

    sx.testing.spmd(2)(ranks)()
    for host, found in results:
        assert same(found[0], host[0])
        for a, b in zip(found, host):
            close(a, b, np.float32, 40)


@pytest.mark.parametrize("dtype", MOSTLY_SLOW)
@pytest.mark.parametrize("numbers", ["of the host", "of the device"])
def test_adam(numbers: str, dtype: Any, device: Any) -> None:
    """Exact, as the CPU's of the same gradients widened: more parameters than a launch takes, of all sizes, some of
    which decay and some of which lie apart from 16 bytes; nothing beside them is written."""
    draw, xp = np.random.default_rng(7), here().xp
    wide = np.float64 if dtype is np.float64 else np.float32
    values, some, wanted, results = [1e-3, 0.9, 1e-8, 0.01], [], [], []
    for i, n in enumerate([70001, 0, 1, 5, *draw.integers(1, 3000, 41).tolist(), 4096]):
        start = int(i % 7 == 3)
        given = [draw.normal(size=n + start).astype(t) for t in (dtype, wide, wide, dtype)]
        given[2] = np.abs(given[2])
        g, m, v, p = (np.ascontiguousarray(a[start:], wide) for a in given)
        outs, decays = [np.empty(n, wide) for _ in range(3)], i % 3 != 1
        kernels.HOST.build.adam([[g, m, v, *outs, *([p] if decays else [])]], (0.9, 0.1, 0.99, 0.01, *values))
        wanted.append(outs)
        room = [xp.full(n + start + 3, 7.0, np.dtype(wide)) for _ in range(3)]
        results.append([(a, start, n) for a in room])
        dev = [xp.asarray(a)[start:] for a in given]
        some.append([*dev[:3], *(a[start : start + n] for a in room), *(dev[3:] if decays else [])])
    own = values if numbers == "of the host" else [xp.asarray(np.array(n, wide)) for n in values]
    Launched(here().launch).adam(some, (0.9, 0.1, 0.99, 0.01, *own))
    for found, want in zip(results, wanted):
        for (a, start, n), w in zip(found, want):
            a = a.get()
            assert same(a[start : start + n], w)
            assert (a[:start] == 7).all() and (a[start + n :] == 7).all()


@stand_in_only
@pytest.mark.parametrize("rate", [1e-2, lambda t: 1e-2 / (t + 1)], ids=["number", "schedule"])
def test_adamw_is_one_launch(rate: Any, device: Any) -> None:
    """Steps seen before: a launch for those that decay and one for those that do not, of each dtype; the values are the
    CPU's, and nobody waits."""
    draw = np.random.default_rng(2)
    shapes = {"w": (9, 5), "v": (8, 8), "b": (7,)}
    arrays = [{n: draw.normal(size=s).astype("f4") for n, s in shapes.items()} for _ in range(2)]

    def steps(mesh: Any, dtype: Any) -> list[Any]:
        params, grads = (tree.map(lambda a: sx.asarray(a, mesh=mesh).astype(dtype), a) for a in arrays)
        optimizer = sx.optim.adamw(rate, mask=lambda params: tree.map(lambda p: p.ndim > 1, params))
        state = optimizer.init(params)
        for _ in range(3):
            device.clear()
            updates, state = optimizer.update(grads, state, params)
            waited, launched = device.of("wait"), [name for name, *_ in device.of("launch")]
            params = sx.optim.apply_updates(params, updates)
        if mesh.device == "cuda":
            assert not waited and launched == ["adam_parts"] * 2
        return [x.numpy() for x in tree.leaves((params, state))]

    for dtype in (np.float32, sx.bfloat16):
        host, found = (steps(sx.make_mesh({"p": 1}, device=d), dtype) for d in ("cpu", "cuda"))
        assert all(same(a, b) for a, b in zip(found, host))
