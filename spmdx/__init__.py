"""spmdx: distributed arrays for NumPy programs. Write for one device, say where arrays live, run on many."""

import importlib as _importlib
import os as _os
import types as _types
import typing as _typing

# Before NumPy: between two products its OpenBLAS would spin for milliseconds on the cores that kernels are to run on.
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

import spmdx.runtime.pages as _pages  # isort: skip  # first of all: what comes after lies where it says
from ml_dtypes import bfloat16
from numpy import (
    bool,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

import spmdx.ops.operators as _operators  # attaches operators and methods to Array
import spmdx.ops.scatter as _scatter  # attaches x.at
import spmdx.ops.transfer as _transfer  # attaches x.to
import spmdx.runtime.world as _world  # names the function that finds the ranks
from spmdx import debug, random, testing
from spmdx.array import Array
from spmdx.autodiff import grad, stop_gradient, value_and_grad, vjp
from spmdx.debug import explicit
from spmdx.dtypes import result_type
from spmdx.errors import SpmdxError
from spmdx.mesh import Mesh
from spmdx.meshes import make_mesh, use_mesh
from spmdx.op import op
from spmdx.ops.contract import *
from spmdx.ops.create import *
from spmdx.ops.create import full, full_like, ones_like, zeros_like
from spmdx.ops.elementwise import *
from spmdx.ops.extremes import *
from spmdx.ops.index import *
from spmdx.ops.info import __array_namespace_info__
from spmdx.ops.join import *
from spmdx.ops.kinds import *
from spmdx.ops.mask import *
from spmdx.ops.moments import *
from spmdx.ops.numpy_names import *
from spmdx.ops.pieces import from_block
from spmdx.ops.place import asarray, redistribute
from spmdx.ops.place import asarray as array
from spmdx.ops.products import *
from spmdx.ops.reduce import *
from spmdx.ops.scan import *
from spmdx.ops.shape import *
from spmdx.ops.soft import *
from spmdx.placement import P, Partial, Replicate, Shard
from spmdx.plans import Plan, name
from spmdx.rule import Form
from spmdx.spec import Spec
from spmdx.transforms.accumulate import *
from spmdx.transforms.custom import custom_vjp
from spmdx.transforms.derivatives import *
from spmdx.transforms.remat import *
from spmdx.transforms.shapes import *
from spmdx.transforms.vmap import *

__version__ = "0.1.0"
__array_api_version__ = "2024.12"
e, pi, inf, nan, newaxis = 2.718281828459045, 3.141592653589793, float("inf"), float("nan"), None

_LATER = ("checkpoint", "cuda", "nn", "optim")  # imported when they are first used: programs without them start quicker
_MODULES = ("debug", "errors", "random", "testing", *_LATER)

if _typing.TYPE_CHECKING:
    from spmdx import checkpoint, cuda, nn, optim
else:

    def __getattr__(attribute):
        if attribute in _LATER:
            return _importlib.import_module(f"spmdx.{attribute}")
        raise _importlib.import_module("spmdx.ops.missing").no_such_name(attribute)


def __dir__() -> list[str]:
    """The public names; of the modules only those that are meant to be used by name."""
    names = {n for n, v in globals().items() if not isinstance(v, _types.ModuleType)}
    return sorted(names - {"_LATER", "_MODULES"} | set(_MODULES))
