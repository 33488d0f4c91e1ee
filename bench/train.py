"""A training step of a small GPT, beside torch and JAX; and the two-layer network where calls are what costs.

    python bench/train.py [--peers all|none] [--quick] [--json FILE]

GPT-2's form: 4 layers, width 256, 8 heads, sequence 256, batch 8, vocabulary 512, AdamW, float32. Initial weights and
data are the same for all, and the losses stand beside each other. torch: scaled_dot_product_attention and fused
AdamW; DDP, FSDP2 and DTensor over gloo. JAX: jit, one process with a device for each rank. All contestants of a case
take their steps in turn in one run, each after one of its own that is not timed; a ratio is the median over the
rounds. Peaks of memory are those of fresh processes, the library's own code counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from launch import Ranks, on_ranks
from timer import Contestant, Report, Row, Timing, heading, race, table

LAYERS, WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 4, 256, 8, 256, 8, 512
HIDDEN, SIZE = 4 * WIDTH, WIDTH // HEADS
RATE, DECAY = 1e-3, 0.1
WIDTHS = (64, 256)  # of the two-layer network
CASES = ((1, 1), (1, 2), (2, 1))

Step = Callable[[], float]  # takes a step and returns the loss
# ours, the other, at least so many times its speed
GPT_BARS = {
    (1, 1): (("spmdx", "torch", 1.0),),
    (1, 2): (("spmdx", "torch", 1.0),),
    (2, 1): (
        ("spmdx TP", "DTensor TP", 1.5),
        ("spmdx DP", "FSDP2", 1.2),
        ("spmdx DP", "DDP", 1.0),
        ("spmdx DP", "JAX DP", 1.3),
        ("spmdx ZeRO-3", "FSDP2", 1.2),
        ("spmdx ZeRO-3", "DDP", 1.0),
        ("spmdx ZeRO-3", "JAX DP", 1.3),
    ),
}
NETWORK_BAR = 4.0  # times DTensor's speed
PEAKS = (("spmdx", "spmdx ZeRO-3"), ("torch", "FSDP2"))  # whose memory is compared: library, contestant


def weights() -> dict[str, Any]:
    """The initial parameters by path, as examples/gpt/model.py names them."""
    draw = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 0.02) -> Any:
        return (scale * draw.standard_normal(shape)).astype(np.float32)

    last = 0.02 / (2 * LAYERS) ** 0.5
    found = {"outer.tokens": normal(VOCABULARY, WIDTH), "outer.positions": normal(LENGTH, WIDTH)}
    norms = ["outer.norm"]
    for i in range(LAYERS):
        at = f"blocks.{i}."
        norms += [at + "norm1", at + "norm2"]
        found |= {
            **{at + name: normal(WIDTH, HEADS, SIZE) for name in "qkv"},
            **{f"{at}{name}_bias": np.zeros((HEADS, SIZE), np.float32) for name in "qkv"},
            at + "out": normal(HEADS, SIZE, WIDTH, scale=last),
            at + "out_bias": np.zeros(WIDTH, np.float32),
            at + "up": normal(WIDTH, HIDDEN),
            at + "up_bias": np.zeros(HIDDEN, np.float32),
            at + "down": normal(HIDDEN, WIDTH, scale=last),
            at + "down_bias": np.zeros(WIDTH, np.float32),
        }
    for at in norms:
        found |= {at + ".scale": np.ones(WIDTH, np.float32), at + ".bias": np.zeros(WIDTH, np.float32)}
    return found


def tokens() -> Any:
    """One batch, which every step takes: [batch, length + 1]."""
    return np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH + 1))


# spmdx


class Spmdx:
    """The models and plans of examples/gpt."""

    def __init__(self, ranks: Ranks, threads: int) -> None:
        import spmdx as sx

        sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "gpt"))
        import model
        import plans

        from spmdx.runtime import kernels

        kernels.set_threads(threads)
        self.sx, self.model, self.plan, self.ranks = sx, model, plans.plan, ranks

    def gpt(self) -> dict[str, Step]:
        if self.ranks.size == 1:
            return {"spmdx": self.trained({"data": 1}, "dp")}
        return {
            "spmdx DP": self.trained({"data": self.ranks.size}, "dp"),
            "spmdx ZeRO-3": self.trained({"data": self.ranks.size}, "zero3"),
            "spmdx TP": self.trained({"model": self.ranks.size}, "megatron"),
            "spmdx TP+SP": self.trained({"model": self.ranks.size}, "megatron+sp"),
        }

    def trained(self, sizes: dict[str, int], words: str) -> Step:
        sx, initial = self.sx, weights()
        config = self.model.Config("gpt2", VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, HEADS, HIDDEN)
        optimizer = sx.optim.adamw(RATE, weight_decay=DECAY)
        gradient = sx.value_and_grad(lambda params, tokens: self.model.loss(params, tokens, config))
        plan, mesh = self.plan(words), sx.make_mesh(sizes)

        def given(path: str) -> Any:
            def init(key: Any, shape: Any, **where: Any) -> Any:
                return sx.asarray(initial[path], **where)

            return sx.nn.Param(initial[path].shape, init)

        with plan.on(mesh):
            shapes = {
                "outer": {
                    **{name: given(f"outer.{name}") for name in ("tokens", "positions")},
                    "norm": {name: given(f"outer.norm.{name}") for name in ("scale", "bias")},
                },
                "blocks": [
                    {
                        **{
                            name: given(f"blocks.{i}.{name}")
                            for matrix in ("q", "k", "v", "out", "up", "down")
                            for name in (matrix, f"{matrix}_bias")
                        },
                        **{
                            norm: {name: given(f"blocks.{i}.{norm}.{name}") for name in ("scale", "bias")}
                            for norm in ("norm1", "norm2")
                        },
                    }
                    for i in range(LAYERS)
                ],
            }
            params = sx.nn.init(shapes, sx.random.key(0), dtype=np.dtype(np.float32))
            held = [params, optimizer.init(params)]
        batch = tokens()

        def step() -> float:
            with plan.on(mesh):
                value, grads = gradient(held[0], sx.asarray(batch))
                updates, held[1] = optimizer.update(grads, held[1], held[0])
                held[0] = sx.optim.apply_updates(held[0], updates)
                return float(value)

        return step

    def network(self, width: int) -> dict[str, Step]:
        """Columns, then rows; a linear loss."""
        sx = self.sx
        mesh = sx.make_mesh({"model": self.ranks.size})
        x, first, second = network_arrays(width)
        x = sx.asarray(x, mesh=mesh)
        first = sx.asarray(first, mesh=mesh, placement=sx.P(None, "model"))
        second = sx.asarray(second, mesh=mesh, placement=sx.P("model"))
        gradient = sx.value_and_grad(lambda a, b: sx.sum(sx.maximum(x @ a, 0) @ b), argnums=(0, 1))

        def step() -> float:
            value, _ = gradient(first, second)
            return float(value)

        return {"spmdx": step, "by hand": self.by_hand(width)}

    def by_hand(self, width: int) -> Step:
        """The same in NumPy and one all-reduce of MPI's: what no library can do without."""
        x, first, second = network_arrays(width)
        first = np.ascontiguousarray(np.array_split(first, self.ranks.size, 1)[self.ranks.rank])
        second = np.array_split(second, self.ranks.size, 0)[self.ranks.rank]

        def step() -> float:
            before = x @ first
            hidden = np.maximum(before, 0)
            loss, whole = np.sum(hidden @ second).reshape(1), np.empty(1, np.float32)
            slope = np.ones((len(x), width), np.float32)
            _ = hidden.T @ slope, x.T @ (slope @ second.T * (before > 0))
            self.ranks.comm.Allreduce(loss, whole)
            return float(whole[0])

        return step


def network_arrays(width: int) -> tuple[Any, ...]:
    """A batch of 64, and the two layers' weights."""
    draw = np.random.default_rng(2)
    shapes = (64, width), (width, 4 * width), (4 * width, width)
    return tuple(draw.standard_normal(shape).astype(np.float32) / width**0.5 for shape in shapes)


# torch


class Torch:
    """The same model as a module; parallel by torch's own ways."""

    def __init__(self, ranks: Ranks, threads: int) -> None:
        import peers

        self.torch, self.tensor, self.mesh = peers.torch(ranks.rank, ranks.size, threads)
        self.ranks = ranks

    def module(self) -> Any:
        torch = self.torch
        nn, functional = torch.nn, torch.nn.functional

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
                self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
                self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

            def forward(self, x: Any) -> Any:
                h = self.norm1(x)
                q, k, v = (
                    y.unflatten(-1, (y.shape[-1] // SIZE, SIZE)).transpose(1, 2)
                    for y in (self.q(h), self.k(h), self.v(h))
                )
                seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + self.out(seen.transpose(1, 2).flatten(-2))
                return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

        class GPT(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
                self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

            def forward(self, x: Any) -> Any:
                y = self.tokens(x) + self.positions.weight[: x.shape[1]]
                for block in self.blocks:
                    y = block(y)
                return functional.linear(self.norm(y), self.tokens.weight)

        made = GPT()
        initial = weights()
        with torch.no_grad():
            for name, value in self.named(initial).items():
                made.get_parameter(name).copy_(torch.from_numpy(np.ascontiguousarray(value)))
        return made

    @staticmethod
    def named(initial: dict[str, Any]) -> dict[str, Any]:
        """The weights by torch's names and in its shapes."""
        found = {"tokens.weight": initial["outer.tokens"], "positions.weight": initial["outer.positions"]}
        for path, value in initial.items():
            at, _, name = path.rpartition(".")
            if "norm" in at:
                at = at.removeprefix("outer.")
                found[f"{at}.{'weight' if name == 'scale' else 'bias'}"] = value
            elif name.endswith("_bias"):
                found[f"{at}.{name.removesuffix('_bias')}.bias"] = value.reshape(-1)
            elif name in "qkv":
                found[f"{at}.{name}.weight"] = value.reshape(WIDTH, WIDTH).T
            elif name in ("out", "up", "down"):
                found[f"{at}.{name}.weight"] = value.reshape(-1, value.shape[-1]).T
        return found

    def gpt(self) -> dict[str, Step]:
        if self.ranks.size == 1:
            return {"torch": self.trained(self.module(), whole=True)}
        return {
            "DDP": self.trained(self.torch.nn.parallel.DistributedDataParallel(self.module()), whole=False),
            "FSDP2": self.trained(self.sharded(), whole=False),
            "DTensor TP": self.trained(self.tensor_parallel(False), whole=True),
            "DTensor TP+SP": self.trained(self.tensor_parallel(True), whole=True),
        }

    def sharded(self) -> Any:
        from torch.distributed.fsdp import fully_shard

        made = self.module()
        for block in made.blocks:
            fully_shard(block, mesh=self.mesh)
        return fully_shard(made, mesh=self.mesh)

    def tensor_parallel(self, sequence: bool) -> Any:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            PrepareModuleOutput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        made = self.module()
        for block in made.blocks:
            columns = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel())
            rows = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
            how: dict[str, Any] = {**columns, "out": rows, "down": rows}
            if sequence:
                how |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
            parallelize_module(block, self.mesh, how)
            if sequence:  # gathered once for all that read it
                whole = PrepareModuleOutput(
                    output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=False
                )
                parallelize_module(block, self.mesh, {"norm1": whole, "norm2": whole})
        if sequence:
            parallelize_module(
                made.blocks[0],
                self.mesh,
                PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True),
            )
            parallelize_module(
                made.blocks[-1],
                self.mesh,
                PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate()),
            )
        return made

    def trained(self, module: Any, whole: bool) -> Step:
        """``whole``: every rank sees the whole batch."""
        torch = self.torch
        batch = torch.from_numpy(tokens())
        if not whole:
            batch = batch.chunk(self.ranks.size)[self.ranks.rank]
        kinds: dict[type, list[Any]] = {}  # fused AdamW takes DTensors or tensors, not both
        for p in module.parameters():
            kinds.setdefault(type(p.data), []).append(p)
        groups = [{"params": some} for some in kinds.values()]
        optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY, fused=True)
        distributed = torch.distributed

        def step() -> float:
            scores = module(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            value = loss.detach()
            if not whole:
                distributed.all_reduce(value)
                value = value / self.ranks.size
            return float(value)

        return step

    def network(self, width: int) -> dict[str, Step]:
        torch, tensor = self.torch, self.tensor
        x, first, second = (torch.from_numpy(a) for a in network_arrays(width))
        x = tensor.distribute_tensor(x, self.mesh, [tensor.Replicate()])
        first = tensor.distribute_tensor(first, self.mesh, [tensor.Shard(1)]).requires_grad_()
        second = tensor.distribute_tensor(second, self.mesh, [tensor.Shard(0)]).requires_grad_()

        def step() -> float:
            loss = (torch.relu(x @ first) @ second).sum()
            loss.backward()
            first.grad = second.grad = None
            return float(loss.full_tensor().detach())

        return {"DTensor": step}


# JAX


class Jax:
    """The same model, jitted: rank 0 runs all devices, the others sleep."""

    def __init__(self, ranks: Ranks, threads: int) -> None:
        import peers

        self.ranks, self.here = ranks, ranks.rank == 0
        self.jax, _, _ = peers.jax(ranks.size)

    def loss(self, params: Any, batch: Any) -> Any:
        jax, jnp = self.jax, self.jax.numpy

        def norm(x: Any, at: str) -> Any:
            centered = x - x.mean(-1, keepdims=True)
            root = jax.lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)
            return centered * root * params[at + ".scale"] + params[at + ".bias"]

        x = params["outer.tokens"][batch[:, :-1]] + params["outer.positions"]
        for i in range(LAYERS):
            at = f"blocks.{i}."
            h = norm(x, at + "norm1")
            q, k, v = (jnp.einsum("btd,dhk->bthk", h, params[at + n]) + params[f"{at}{n}_bias"] for n in "qkv")
            seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + jnp.einsum("bthk,hkd->btd", seen, params[at + "out"]) + params[at + "out_bias"]
            h = jax.nn.gelu(norm(x, at + "norm2") @ params[at + "up"] + params[at + "up_bias"])
            x = x + h @ params[at + "down"] + params[at + "down_bias"]
        scores = jnp.einsum("btd,vd->btv", norm(x, "outer.norm"), params["outer.tokens"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), batch[:, 1:, None], -1)
        return -chosen.mean()

    def gpt(self) -> dict[str, Step]:
        from jax.sharding import PartitionSpec as Spec

        if self.ranks.size == 1:
            return {"JAX": self.trained(Spec(), {})}
        divided = {**dict.fromkeys(("q", "k", "v", "up"), 1), "out": 0, "down": 0, "tokens": 0}
        divided |= dict.fromkeys(("q_bias", "k_bias", "v_bias", "up_bias"), 0)
        return {"JAX DP": self.trained(Spec("p"), {}), "JAX TP": self.trained(Spec(), divided)}

    def trained(self, of_batch: Any, divided: dict[str, int]) -> Step:
        if not self.here:
            return lambda: 0.0
        jax, jnp = self.jax, self.jax.numpy
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("p",))

        def put(path: str, value: Any) -> Any:
            dim = divided.get(path.rpartition(".")[2])
            spec = PartitionSpec() if dim is None else PartitionSpec(*[None] * dim, "p")
            return jax.device_put(value, NamedSharding(mesh, spec))

        params = {path: put(path, value) for path, value in weights().items()}
        batch = jax.device_put(tokens().astype(np.int32), NamedSharding(mesh, of_batch))
        state = (jnp.zeros(()), *(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))

        @jax.jit
        def update(params: Any, state: Any) -> Any:
            value, grads = jax.value_and_grad(self.loss)(params, batch)
            t, means, squares = state
            t = t + 1
            means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
            squares = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, squares, grads)

            def new(p: Any, m: Any, v: Any) -> Any:
                below = jnp.sqrt(v / (1 - 0.999**t)) + 1e-8
                return p - RATE * (m / (1 - 0.9**t) / below + DECAY * p)

            return jax.tree.map(new, params, means, squares), (t, means, squares), value

        held = [params, state]

        def step() -> float:
            held[0], held[1], value = update(*held)
            return float(value)

        return step

    def network(self, width: int) -> dict[str, Step]:
        return {}


LIBRARIES: dict[str, Any] = {"spmdx": Spmdx, "torch": Torch, "jax": Jax}


# On the ranks


def timed(step: Step, losses: list[float]) -> Contestant:
    """Steps, each to its end, after one that is not timed: in training a step follows a step of the same model, and not
    what another library left in the caches and its threads. The losses are kept."""

    def time(count: int) -> float:
        losses.append(step())
        start = perf_counter()
        for _ in range(count):
            losses.append(step())
        return perf_counter() - start

    return time


def work(options: argparse.Namespace) -> None:
    """What every rank does; rank 0 writes what was found."""
    ranks = Ranks()
    if options.threads == 1:
        ranks.settle()
    names = ["spmdx", *(() if options.peers == "none" else ("torch", "jax"))]
    libraries = [LIBRARIES[name](ranks, options.threads) for name in names]
    report = Report("train")
    case = {"model": "GPT", "ranks": ranks.size, "threads": options.threads}
    rounds = 4 if options.quick else 15
    run(case, {name: step for lib in libraries for name, step in lib.gpt().items()}, ranks, rounds, report)
    for ours, other, least in GPT_BARS[ranks.size, options.threads]:
        bar(report, case, ours, other, least)
    if ranks.size > 1:
        for width in WIDTHS:
            steps = {name: step for lib in libraries for name, step in lib.network(width).items()}
            case = {"model": f"two layers, width {width}", "ranks": ranks.size, "threads": options.threads}
            run(case, steps, ranks, 10 * rounds, report)
            bar(report, case, "spmdx", "DTensor", NETWORK_BAR)
    if ranks.rank == 0:
        report.write(options.worker)
    ranks.rest()


def peak(options: argparse.Namespace) -> None:
    """What every rank of a fresh run does: some steps of one contestant; rank 0 writes the greatest peak of memory."""
    ranks = Ranks()
    name, contestant = PEAKS[options.peak]
    library = LIBRARIES[name](ranks, options.threads)
    loaded = resident("VmRSS")
    step = library.gpt()[contestant]
    for _ in range(5):
        step()
    found = {"peak": max(ranks.gather(resident("VmHWM"))), "loaded": max(ranks.gather(loaded))}
    if ranks.rank == 0:
        report = Report("train")
        report.rows.append(Row({"model": "GPT, peak memory", "ranks": ranks.size}, contestant, found))
        report.write(options.worker)
    ranks.rest()


def resident(which: str) -> float:
    """Bytes of memory that this process holds (VmRSS), or held at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(which))


def compared(report: Report) -> None:
    """The bar of memory: no more than FSDP2's."""
    ours, other = (next(row for row in report.rows if row.library == c and "peak" in row.time) for _, c in PEAKS)
    ratio = ours.time["peak"] / other.time["peak"]
    report.claim(ours.case, f"{ours.library} holds at most 1.0 times the memory of {other.library}", ratio, ratio <= 1)


TIMES: dict[str, dict[str, Timing]] = {}


def run(case: dict[str, Any], steps: dict[str, Step], ranks: Ranks, rounds: int, report: Report) -> None:
    """One race; the last loss that each contestant saw after as many steps."""
    losses: dict[str, list[float]] = {name: [] for name in steps}
    contestants: dict[str, Contestant | None] = {name: timed(step, losses[name]) for name, step in steps.items()}
    times = TIMES[str(case)] = race(contestants, ranks, rounds, target=0.0, collective=True)
    report.add(case, times)
    for row in report.rows[-len(times) :]:
        row.time["loss"] = losses[row.library][4] if len(losses[row.library]) > 4 else losses[row.library][-1]


def bar(report: Report, case: dict[str, Any], ours: str, other: str, least: float) -> None:
    times = TIMES[str(case)]
    if other in times:
        speed = times[ours].speed(times[other])
        report.claim(case, f"{ours} at least {least} times the speed of {other}", speed, speed >= least)


# What is printed


def show(report: Report) -> None:
    print(heading(), end="\n\n")
    cases = list(dict.fromkeys(tuple(row.case.items()) for row in report.rows))
    for case in cases:
        rows = [row for row in report.rows if tuple(row.case.items()) == case]
        about = dict(case)
        if "peak" in rows[0].time:
            print(f"{about['model']}, {about['ranks']} rank(s); MB, the greatest of the ranks")
            lines = [[row.library, *(f"{row.time[k] / 1e6:.0f}" for k in ("peak", "loaded"))] for row in rows]
            print(table(["", "peak", "before the model is made"], lines), end="\n\n")
            continue
        print(f"{about['model']}, {about['ranks']} rank(s) of {about['threads']} thread(s); milliseconds a step")
        lines = [
            [row.library, *(f"{row.time[k] * 1e3:.2f}" for k in ("median", "min", "q3")), f"{row.time['loss']:.6f}"]
            for row in rows
        ]
        print(table(["", "median", "min", "q3", "loss"], lines), end="\n\n")
    lines = [
        [" ".join(str(v) for v in b.case.values()), b.claim, f"{b.measured:.2f}", "met" if b.met else "MISSED"]
        for b in report.bars
    ]
    print(table(["case", "claim", "measured", "bar"], lines), end="\n\n")
    print(report.summary())


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--peers", choices=("all", "none"), default="all")
    reader.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
    reader.add_argument("--json", metavar="FILE", help="write all that was found")
    reader.add_argument("--worker", help=argparse.SUPPRESS)
    reader.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    reader.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = reader.parse_args()
    if options.worker:
        work(options) if options.peak is None else peak(options)
        return
    report = Report("train")
    words = ["--peers", options.peers, *(["--quick"] if options.quick else [])]
    for ranks, threads in CASES:
        report.merge(on_ranks(__file__, ranks, [*words, "--threads", str(threads)], limit=1200, threads=threads))
    for i in range(0 if options.peers == "none" else len(PEAKS)):
        report.merge(on_ranks(__file__, 2, [*words, "--peak", str(i)], limit=300))
    if options.peers != "none":
        compared(report)
    if options.json:
        report.write(options.json)
    show(report)


if __name__ == "__main__":
    main()
