"""Kernels, steps and the host's time on one GPU, beside CuPy, cuRAND and torch in the same run.

    python bench/gpu.py [--part NAME,NAME] [--json FILE]

Times are medians of launches between two events of the device. A bar of "80% of copy" compares with the bytes a second
that a copy of 1 GiB moves here. Each row is tried on its own: what fails is a row that says why.
"""
# ruff: noqa: B023, E731 - what a loop compares is called before the loop goes on

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # last: where spmdx is installed, it has its compiled modules there
from meter import BF16, F32, Bench

import spmdx as sx
from spmdx import tree


def random_values(b: Bench) -> None:
    n, key = 2**28, sx.random.key(1)
    for name, draw in (("uniform", sx.random.uniform), ("normal", sx.random.normal)):
        peers: dict[str, Callable[[], Any]] = {}
        curand = b.cupy.random.default_rng(0)
        peers["cuRAND"] = (lambda: curand.random(n, np.float32)) if name == "uniform" else (
            lambda: curand.standard_normal(n, np.float32))  # fmt: skip
        if b.torch is not None:
            out = b.torch.empty(n, device="cuda")
            peers["torch"] = out.uniform_ if name == "uniform" else out.normal_
        call = lambda draw=draw: draw(key, (n,), dtype=np.float32, mesh=b.mesh)
        b.row(f"{name} float32", call, peers, 4.0 * n, write=True)
    for dtype in (BF16, np.float16, np.float64):
        size = np.dtype(dtype).itemsize
        call = lambda dtype=dtype: sx.random.normal(key, (n // 4,), dtype=dtype, mesh=b.mesh)
        b.row(f"normal {np.dtype(dtype).name}", call, {}, size * n / 4, write=True)
    x = b.array(2**26)
    t, drop = b.twin(x), b.torch.nn.functional.dropout if b.torch is not None else None
    b.row("dropout float32", lambda: sx.nn.dropout(key, x, 0.1), {"torch": lambda: drop(t, 0.1)}, 8.0 * 2**26)


def rows(b: Bench) -> None:
    f = b.torch.nn.functional if b.torch is not None else None
    for dtype in (F32, BF16):
        size, shape = dtype.itemsize, (8192, 4096)
        x, scale, bias = b.array(*shape, dtype=dtype), b.array(4096, dtype=dtype), b.array(4096, dtype=dtype)
        g = b.array(*shape, dtype=dtype, seed=1)
        t, ts, tb = b.twin(x), b.twin(scale), b.twin(bias)
        n = float(x.size * size)
        name = dtype.name
        norm = lambda: f.layer_norm(t, (4096,), ts, tb)
        b.row(f"layer norm {name}", lambda: sx.nn.layer_norm(x, scale, bias), {"torch": norm}, 2 * n)
        from spmdx.ops.neural import _norm_back, _norm_scale_back

        b.row(f"layer norm back {name}", lambda: _norm_back(g, x, scale, 1e-5, True), {}, 3 * n)
        b.row(f"layer norm to scale {name}", lambda: _norm_scale_back(g, x, 1e-5, True), {}, 3 * n)
        b.row(
            f"rms norm {name}", lambda: sx.nn.rms_norm(x, scale), {"torch": lambda: f.rms_norm(t, (4096,), ts)}, 2 * n
        )
        b.row(f"softmax {name}", lambda: sx.nn.softmax(x), {"torch": lambda: f.softmax(t, -1)}, 2 * n)
        gelu = lambda: f.gelu(t, approximate="tanh")
        b.row(f"gelu {name}", lambda: sx.nn.gelu(x), {"torch": gelu}, 2 * n)
        b.row(f"silu {name}", lambda: sx.nn.silu(x), {"torch": lambda: f.silu(t)}, 2 * n)
        b.row(f"swiglu {name}", lambda: sx.nn.swiglu(x, g), {"torch": lambda: f.silu(t) * t}, 3 * n)
    logits, labels = b.array(8192, 50304), sx.random.randint(sx.random.key(2), (8192,), 0, 50304, mesh=b.mesh)
    loss = lambda z: sx.mean(sx.nn.cross_entropy(z, labels))
    tl, ti = b.twin(logits, grad=True), b.twin(labels)
    both = lambda: f.cross_entropy(tl, ti).backward()
    # read for the maxima, the sums and the gradient, and written once
    b.row("cross-entropy and gradient", lambda: sx.value_and_grad(loss)(logits), {"torch": both}, 4.0 * logits.size * 4)


def add_norms(b: Bench) -> None:
    """The sum with the residual stream and its norm, and their gradients; torch makes two calls of it."""
    from spmdx.ops.together import AddNorm, add_norm_gradients

    f, how = b.torch.nn.functional if b.torch is not None else None, AddNorm(None, 1e-5, True)
    for dtype in (F32, BF16):
        name, shape = dtype.name, (8192, 4096)
        x, residual, g_stream, g = (b.array(*shape, dtype=dtype, seed=i) for i in range(4))
        scale, bias = b.array(4096, dtype=dtype), b.array(4096, dtype=dtype, seed=5)
        given = [b.twin(a, grad=True) for a in (x, residual, scale, bias)]
        slopes, n = [b.twin(a) for a in (g_stream, g)], float(x.size * dtype.itemsize)

        def theirs(given: Any = given) -> Any:
            t, tr, ts, tb = given
            stream = tr + t
            return stream, f.layer_norm(stream, (4096,), ts, tb)

        def forward(theirs: Any = theirs) -> None:
            with b.torch.no_grad():
                theirs()

        call = lambda: sx.nn.add_norm(x, residual, scale, bias)
        b.row(f"add norm {name}", call, {"torch": forward}, 4 * n)
        stream = call()[0]
        gradients = lambda: add_norm_gradients(how, g_stream, g, stream, scale, bias, None)
        made = None if b.torch is None else theirs()
        back = lambda made=made: b.torch.autograd.grad(made, given, slopes, retain_graph=True)
        # rows read the stream and both slopes and write one; sums over them read two again
        b.row(f"add norm back {name}", gradients, {"torch": back}, 6 * n)


def products(b: Bench) -> None:
    """Stacks of matrices in bfloat16, as they lie and turned over."""
    x, y = (b.array(96, 1024, 128, dtype=BF16, seed=i) for i in range(2))
    t, u = b.twin(x), b.twin(y)
    turned = sx.matrix_transpose(y)
    scores = x @ turned
    s = b.twin(scores)
    b.row("stacks turned over bfloat16", lambda: x @ turned, {"torch": lambda: t @ u.mT}, peer_bar=0.9)
    b.row("stacks bfloat16", lambda: scores @ y, {"torch": lambda: s @ u}, peer_bar=0.9)


def messages(b: Bench) -> None:
    """NCCL's own all-reduce beside ours: one rank, for a GPU alone has no more where NCCL lets none share it. What is
    seen is what events and memory add to it."""
    from spmdx import context
    from spmdx.runtime import nccl

    library, where = nccl.found()
    name = "all-reduce 256 MiB, 1 rank"
    if library is None:
        b.add({"name": name, "met": False, "error": where})
        return
    version = library.version
    text = f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100}"
    shares = nccl.shares_gpus(where)
    print(text, where, "lets ranks share a GPU" if shares else "lets no ranks share a GPU", flush=True)
    world = context.world()
    comm = nccl.NcclComm(b.mesh, world.rank, world.comm(b.mesh.host), library, print)
    group = comm.group(b.mesh.axis_names)
    n = 2**26
    x, out = b.cupy.ones(n, np.float32), b.cupy.empty(n, np.float32)
    kind, op = nccl.TYPES["float32"], nccl.OPS["sum"]

    def ours() -> None:
        own = group.take(n, x.dtype)
        group._enqueue("all_reduce sum", comm.comm.all_reduce, [(x.data.ptr, own.data.ptr, n)], kind, op)

    def raw() -> None:
        comm.comm.all_reduce([(x.data.ptr, out.data.ptr, n)], kind, op, b.cupy.cuda.get_current_stream().ptr)

    b.row(name, ours, {"NCCL": raw}, peer_bar=0.95)
    b.rows[-1]["note"] = f"{text}, {'which lets' if shares else 'which lets no'} ranks share a GPU"


def optimizer(b: Bench) -> None:
    n = 2**26
    params, grads = {"w": b.array(n)}, {"w": b.array(n, seed=1)}
    adamw = sx.optim.adamw(1e-3)
    state = [adamw.init(params)]

    def step() -> None:
        _, state[0] = adamw.update(grads, state[0], params)

    peers = {}
    if b.torch is not None:
        w = b.twin(params["w"], grad=True)
        w.grad = b.twin(grads["w"])
        peers["torch"] = b.torch.optim.AdamW([w], lr=1e-3, fused=True).step
    b.row("adamw", step, peers, 28.0 * n)  # reads p, g, m, v; writes p, m, v


def attention(b: Bench) -> None:
    for dtype, bar in ((BF16, 0.5), (F32, 0.0)):
        shape = (4, 2048, 16, 64)
        q, k, v = (b.array(*shape, dtype=dtype, seed=i) for i in range(3))
        twins = [b.twin(a, grad=True) for a in (q, k, v)]
        turned = [None if t is None else t.transpose(1, 2) for t in twins]
        f = b.torch.nn.functional if b.torch is not None else None
        forward = lambda t=turned: f.scaled_dot_product_attention(*t, is_causal=True)
        call = lambda q=q, k=k, v=v: sx.nn.attention(q, k, v, causal=True)
        b.row(f"attention {dtype.name}", call, {"torch": forward}, peer_bar=bar)
        total = lambda q, k, v: sx.sum(sx.nn.attention(q, k, v, causal=True))
        back = lambda t=turned: f.scaled_dot_product_attention(*t, is_causal=True).sum().backward()
        grad = lambda q=q, k=k, v=v, total=total: sx.grad(total, (0, 1, 2))(q, k, v)
        b.row(f"attention and gradients {dtype.name}", grad, {"torch": back}, peer_bar=bar)


def packing(b: Bench) -> None:
    from spmdx.runtime import boxes
    from spmdx.runtime.gpu import here

    class Part:
        def __init__(self, box: tuple[slice, ...]) -> None:
            self.boxes, self.shapes = (box,), (tuple(s.stop - s.start for s in box),)

    n, p = 8192, 4
    block = b.array(n, n)._block
    flat = b.cupy.empty(n * n, np.float32)
    for name, cut in (("columns", n // p), ("odd columns", 2047)):
        edges = [min(n, i * cut) for i in range(-(-n // cut) + 1)]
        parts = [[Part((slice(0, n), slice(lo, hi)))] for lo, hi in pairwise(edges)]
        plan, launch = boxes.Plan(parts, [(n, n)], 4), here().launch
        b.row(f"pack {name}", lambda plan=plan, launch=launch: launch.copy(plan, [block], flat, True), {}, 8.0 * n * n)
        b.row(
            f"unpack {name}", lambda plan=plan, launch=launch: launch.copy(plan, [block], flat, False), {}, 8.0 * n * n
        )


def host_time(b: Bench) -> None:
    """What a call takes the host beyond CuPy's own: a small operation many times, and the device no limit."""
    x = b.array(8, 8)
    c = b.cupy.ones((8, 8), np.float32)
    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "add": (lambda: x + x, lambda: c + c),
        "exp": (lambda: sx.exp(x), lambda: b.cupy.exp(c)),
        "sum": (lambda: sx.sum(x, 0), lambda: c.sum(0)),
        "matmul": (lambda: x @ x, lambda: c @ c),
        "slice": (lambda: x[1:], lambda: c[1:]),
    }
    for name, (ours, theirs) in cases.items():
        try:
            best = []
            for call in (ours, theirs):
                for _ in range(100):
                    call()
                each = []
                for _ in range(5):
                    b.cupy.cuda.Device().synchronize()
                    start = time.perf_counter()
                    for _ in range(500):
                        call()
                    each.append((time.perf_counter() - start) / 500 * 1e6)
                best.append(min(each))
            b.add(
                {
                    "name": f"host time of {name}",
                    "us": best[0],
                    "over CuPy us": best[0] - best[1],
                    "met": best[0] - best[1] < 6,
                }
            )
        except Exception as error:
            b.failed(f"host time of {name}", error)


def gpt(b: Bench) -> None:
    """A training step of a GPT of 12 layers in bfloat16, as it is and as a graph, against torch's eager one."""
    layers, d, heads, words, batch, length = 12, 768, 12, 50304, 8, 1024
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    params = {
        "wte": b.array(words, d, dtype=BF16) * 0.02,
        "blocks": [
            {**{n: b.array(*s, dtype=BF16, seed=i) * 0.02 for n, s in shapes.items()},
             "n1": sx.ones(d, dtype=BF16, mesh=b.mesh), "n2": sx.ones(d, dtype=BF16, mesh=b.mesh)}
            for i in range(layers)
        ],
    }  # fmt: skip
    tokens = sx.random.randint(sx.random.key(3), (batch, length), 0, words, mesh=b.mesh)

    def loss_of(p: Any, tokens: Any) -> Any:
        x = p["wte"][tokens]
        for block in p["blocks"]:
            h = (sx.nn.layer_norm(x, block["n1"]) @ block["qkv"]).reshape(batch, length, 3, heads, d // heads)
            q, k, v = (h[:, :, i] for i in range(3))
            x = x + sx.nn.attention(q, k, v, causal=True).reshape(batch, length, d) @ block["out"]
            x = x + sx.nn.gelu(sx.nn.layer_norm(x, block["n2"]) @ block["up"]) @ block["down"]
        return sx.mean(sx.nn.cross_entropy(x @ p["wte"].T, tokens).astype(np.float32))

    adamw = sx.optim.adamw(1e-4)

    def step(params: Any, state: Any, tokens: Any) -> Any:
        loss, grads = sx.value_and_grad(loss_of)(params, tokens)
        updates, state = adamw.update(grads, state, params)
        return loss, updates, state

    state = adamw.init(params)
    peers = {}
    if b.torch is not None:
        torch, f = b.torch, b.torch.nn.functional
        flat = [b.twin(p, grad=True) for p in tree.leaves(params)]
        own = tree.unflatten(tree.flatten(params)[1], flat)
        ids, optimizer = b.twin(tokens), torch.optim.AdamW(flat, lr=1e-4, fused=True)

        def theirs() -> None:
            x = own["wte"][ids]
            for block in own["blocks"]:
                h = (f.layer_norm(x, (d,), block["n1"]) @ block["qkv"]).view(batch, length, 3, heads, d // heads)
                q, k, v = h.permute(2, 0, 3, 1, 4)
                y = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, d)
                x = x + y @ block["out"]
                x = x + f.gelu(f.layer_norm(x, (d,), block["n2"]) @ block["up"], approximate="tanh") @ block["down"]
            f.cross_entropy((x @ own["wte"].T).view(-1, words), ids.view(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()

        peers["torch"] = theirs
    b.row("GPT step", lambda: step(params, state, tokens), peers)
    graphed = sx.cuda.graph(step)
    b.row("GPT step as a graph", lambda: graphed(params, state, tokens), peers)


PARTS = {"random": random_values, "rows": rows, "add_norm": add_norms, "products": products, "optimizer": optimizer,
         "attention": attention, "packing": packing, "messages": messages, "host": host_time, "gpt": gpt}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", default=",".join(PARTS), help="names, separated by commas; all if left out")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    wanted = given.part.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    bench = Bench()
    for name, part in PARTS.items():
        if name in wanted:
            try:
                part(bench)
            except Exception as error:
                bench.failed(name, error)
            bench.cupy.get_default_memory_pool().free_all_blocks()
            if given.json:
                out = {"write": bench.write, "copy": bench.copy, "rows": bench.rows}
                given.json.write_text(json.dumps(out, indent=1))
    return int(any("error" in row for row in bench.rows))


if __name__ == "__main__":
    sys.exit(main())
