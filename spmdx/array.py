"""The array: this rank's block and the spec that all ranks share. Operators are attached by the operations above."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdx.errors import MeshError, SpmdxError
from spmdx.mesh import Mesh
from spmdx.placement import Placement
from spmdx.runtime import memory
from spmdx.spec import Spec

Block = Any


class Array:
    """An immutable array that means its global value; the ranks of its mesh hold the pieces that its placement says.

    Make one with :func:`spmdx.asarray`, :func:`spmdx.from_block` or a creation function, never directly.
    """

    __slots__ = ("__weakref__", "_block", "spec")
    _block: Block
    spec: Spec

    def __init__(self, block: Block, spec: Spec) -> None:
        self._block = block
        self.spec = spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.spec.ndim

    @property
    def size(self) -> int:
        """Number of elements of the global value."""
        return math.prod(self.spec.shape)

    @property
    def mesh(self) -> Mesh:
        """The mesh it lies on."""
        return self.spec.mesh

    @property
    def placement(self) -> Placement:
        """Where the pieces lie: a dict with an entry for every mesh axis (a P where only that can say it)."""
        return self.spec.placement

    @property
    def device(self) -> str:
        """The kind of device of its blocks."""
        return self.spec.mesh.device

    @property
    def block(self) -> Block:
        """This rank's piece: a read-only NumPy view (or a CuPy array), also when 0-d."""
        if self._block is None:
            raise MeshError(
                f"this rank is outside {self.spec.mesh!r}, so it has no block of this array.",
                "`if x.mesh.contains_me():` around code that reads x.block",
            )
        if isinstance(self._block, tuple):
            return tuple(_read_only(b) for b in self._block)
        return _read_only(self._block)

    def __repr__(self) -> str:
        if self._block is None:
            return f"Array({self.spec!r}; no block on this rank)"
        if isinstance(self._block, tuple):
            return f"Array({self.spec!r}; blocks of {len(self._block)} simulated ranks)"
        whole = "" if self.spec.replicated else f"; block {list(self._block.shape)} of rank {self.mesh.rank}"
        return f"Array({self.spec!r}{whole}\n{np.array2string(memory.host(self._block), threshold=100)})"

    __str__ = __repr__

    def __deepcopy__(self, memo: Any) -> Array:
        return self

    def __copy__(self) -> Array:
        return self

    def __reduce__(self) -> Any:
        raise SpmdxError(
            "an Array is not pickled: its pieces belong to many ranks.",
            "sx.checkpoint.save(path, tree), or pickle x.numpy()",
        )

    def __len__(self) -> int:
        if not self.spec.shape:
            raise TypeError("len() of a 0-d array")
        return self.spec.shape[0]

    if TYPE_CHECKING:  # attached by spmdx.ops: one place per operation
        T: Array
        mT: Array  # noqa: N815  # the standard's name

        def _binary(self, other: Any) -> Array: ...
        def _unary(self) -> Array: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _binary
        __floordiv__ = __mod__ = __pow__ = __matmul__ = __and__ = __or__ = __xor__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __neg__ = __abs__ = __invert__ = _unary

        def __getitem__(self, index: Any) -> Array: ...
        def __bool__(self) -> bool: ...
        def __int__(self) -> int: ...
        def __float__(self) -> float: ...
        def __complex__(self) -> complex: ...
        def __index__(self) -> int: ...
        def item(self) -> Any: ...
        def numpy(self) -> Any: ...
        def redistribute(self, placement: Any = None, /, **axes: Any) -> Array: ...
        def astype(self, dtype: Any, *, copy: bool = True) -> Array: ...
        def reshape(self, *shape: Any) -> Array: ...
        def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array: ...


def _read_only(block: Any) -> Any:
    if not isinstance(block, np.ndarray):
        return block
    view = block.view()
    view.flags.writeable = False
    return view
