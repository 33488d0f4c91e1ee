"""Ready plans, one for each way to divide training; `|` combines them."""

from __future__ import annotations

from collections.abc import Mapping

from spmdx.errors import ArgumentError
from spmdx.placement import Replicate, Shard
from spmdx.plans.placing import Spread
from spmdx.plans.plan import Plan


def data_parallel(axis: str = "data", batch: str = "batch") -> Plan:
    """Every rank has its part of what the model names "batch" (first dimension), and all of the parameters.

    A step moves the gradients: one all-reduce a bucket of them, 2 n (p - 1) / p bytes for n bytes of parameters.
    """
    return Plan(names={batch: {axis: Shard(0)}})


def tensor_parallel(axis: str, dims: Mapping[str, int], residual: str = "residual", normed: str = "normed") -> Plan:
    """Parameters divided within a layer: pattern of path to the dimension that is divided. Columns before rows, as in
    "Megatron-LM" (Shoeybi et al., 2019): a step sums what the model names "residual" forward, and the gradient of what
    it names "normed" backward: two all-reduces of activations a layer each way."""
    if not isinstance(dims, Mapping) or not all(isinstance(d, int) and not isinstance(d, bool) for d in dims.values()):
        raise ArgumentError(
            f"tensor parallelism takes a dict of patterns to the dimension that is divided; got {dims!r}.",
            f'tensor_parallel({axis!r}, {{"blocks.*.up": 1, "blocks.*.down": 0}})',
        )
    whole = {axis: Replicate()}
    params = {pattern: {axis: Shard(dim)} for pattern, dim in dims.items()}
    return Plan(params, names={residual: whole, normed: whole})


def sequence_parallel(axis: str, residual: str = "residual", normed: str = "normed") -> Plan:
    """What lies between the layers' products is divided along the sequence (dimension 1): norms, dropout, residual
    sums. "Reducing activation recomputation" (Korthikanti et al., 2022). Together with :func:`tensor_parallel`: each
    all-reduce becomes a reduce-scatter where the model names "residual" and an all-gather where it names "normed"."""
    return Plan(names={residual: {axis: Shard(1)}, normed: {axis: Replicate()}})


def zero1(axis: str = "data", batch: str = "batch") -> Plan:
    """Data-parallel, with the optimizer's state divided. "ZeRO" (Rajbhandari et al., 2020), stage 1.

    A step reduce-scatters the gradients, a bucket at a time, and gathers the new parameters: 2 n (p - 1) / p bytes.
    """
    spread = {axis: Spread()}
    return data_parallel(axis, batch) | Plan(grads={"*": spread}, state={"*": spread})


def zero2(axis: str = "data", batch: str = "batch", block: str = "block") -> Plan:
    """As :func:`zero1`; the gradients of a function that the model names "block" are reduce-scattered as soon as they
    are there, so that no rank holds all of them. The same bytes, one message a block."""
    return zero1(axis, batch) | Plan(gather={block: {axis: Replicate()}})


def zero3(axis: str = "data", batch: str = "batch", block: str = "block", outer: str = "outer") -> Plan:
    """Data-parallel, with parameters, gradients and state divided: a block's parameters are gathered before it,
    dropped after it, and gathered again for its gradient; those that the model names "outer" once.

    A step moves at most 3 n (p - 1) / p bytes.
    """
    whole = {axis: Replicate()}
    return data_parallel(axis, batch) | Plan({"*": {axis: Spread()}}, names={outer: whole}, gather={block: whole})


def two_dimensional(rows: str, columns: str, dims: Mapping[str, int], **names: str) -> Plan:
    """Every matrix in blocks over both axes, none of it whole anywhere: SUMMA (van de Geijn and Watts, 1997) with the
    matrix of parameters as the one that travels. A block's panels are gathered along ``rows`` before it, as
    :func:`zero3` does, and multiply the rows' part of the batch; along ``columns`` products are divided as
    :func:`tensor_parallel` says. "GSPMD" (Xu et al., 2021) calls the same "2D finalized".
    """
    return tensor_parallel(columns, dims) | zero3(rows, **names)


WORDS = ("dp", "megatron", "sp", "zero1", "zero2", "zero3", "2d")


def parse(words: str, dims: Mapping[str, int] | None = None, data: str = "data", model: str = "model") -> Plan:
    """The ready plans that a command line asks for, as ``"megatron+sp+zero3"``, combined.

    Args:
        words: of "dp", "megatron", "sp", "zero1", "zero2", "zero3" and "2d", joined by +; "" is the plan that says
            nothing. "2d" is :func:`two_dimensional`, its rows along ``data`` and its columns along ``model``.
        dims: what :func:`tensor_parallel` divides.
        data, model: the mesh axes.

    Raises:
        ArgumentError: another word.
    """
    if not isinstance(words, str):
        raise ArgumentError(f"ready plans are told by their words; got {words!r}.", 'parse("megatron+zero3", dims)')
    dims = {} if dims is None else dims
    ready = {
        "dp": data_parallel(data),
        "megatron": tensor_parallel(model, dims),
        "sp": sequence_parallel(model),
        "zero1": zero1(data),
        "zero2": zero2(data),
        "zero3": zero3(data),
        "2d": two_dimensional(data, model, dims),
    }
    made = Plan()
    for word in filter(None, words.split("+")):
        if word not in ready:
            raise ArgumentError(f"{word!r} is no ready plan; they are {', '.join(WORDS)}.", 'parse("megatron+zero3")')
        made = made | ready[word]
    return made
