"""spmdx: distributed arrays for NumPy programs. Write for one device, say where arrays live, run on many."""

import spmdx.runtime.world as _world  # noqa: F401  # names the function that finds the ranks
from spmdx import debug as debug
from spmdx.array import Array as Array
from spmdx.autodiff import custom_vjp as custom_vjp
from spmdx.autodiff import grad as grad
from spmdx.autodiff import jvp as jvp
from spmdx.autodiff import remat as remat
from spmdx.autodiff import stop_gradient as stop_gradient
from spmdx.autodiff import value_and_grad as value_and_grad
from spmdx.autodiff import vjp as vjp
from spmdx.debug import explicit as explicit
from spmdx.errors import SpmdxError as SpmdxError
from spmdx.mesh import Mesh as Mesh
from spmdx.meshes import make_mesh as make_mesh
from spmdx.meshes import use_mesh as use_mesh
from spmdx.op import op as op
from spmdx.ops.place import asarray as asarray
from spmdx.ops.place import from_block as from_block
from spmdx.ops.place import redistribute as redistribute
from spmdx.placement import P as P
from spmdx.placement import Partial as Partial
from spmdx.placement import Replicate as Replicate
from spmdx.placement import Shard as Shard
from spmdx.spec import Spec as Spec

__version__ = "0.1.0"
