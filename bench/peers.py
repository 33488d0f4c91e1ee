"""The libraries that spmdx is measured beside, each brought up inside the ranks of one run."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any
from unittest.mock import MagicMock

ALL = ("torch", "jax", "heat")


def torch(rank: int, size: int, threads: int = 1) -> tuple[Any, Any, Any]:
    """torch, its tensor module and a mesh of one dimension over all ranks; messages go by gloo."""
    warnings.filterwarnings("ignore", module="torch")
    import torch as library
    from torch import distributed
    from torch.distributed import tensor

    library.set_num_threads(threads)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", rank=rank, world_size=size)
    return library, tensor, distributed.init_device_mesh("cpu", (size,))


def jax(size: int) -> tuple[Any, Any, Any]:
    """jax, a sharding of dimension 0 over as many devices as there are ranks, and one that replicates."""
    import jax as library
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = library.devices()
    if len(devices) != size:
        raise RuntimeError(f"jax has {len(devices)} devices and needs {size}: XLA_FLAGS came too late.")
    mesh = Mesh(devices, ("p",))
    return library, NamedSharding(mesh, PartitionSpec("p")), NamedSharding(mesh, PartitionSpec())


def heat() -> Any:
    """Heat. It imports torchvision for its data sets alone; where that is missing, anything will do in its place."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
            sys.modules[name] = MagicMock(__spec__=None)
    import heat as library

    return library


def versions_of_all() -> list[str]:
    """What setup_peers.py prints when it is done."""
    import jax as of_jax
    import torch as of_torch

    return [f"{library.__name__} {library.__version__}" for library in (of_torch, of_jax, heat())]
