"""The exception tree. Every class is also the built-in exception that a user would expect.

A message says what is wrong, where and why, and ends with the line to write instead (`hint`).
"""

from __future__ import annotations


class SpmdxError(Exception):
    """The root of every error that spmdx raises on purpose."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message if not hint else f"{message}\n  Write {hint}")


class MeshError(SpmdxError, ValueError):
    """A mesh that cannot be made, an axis that a mesh does not have, or arrays on meshes that do not mix."""


class PlacementError(SpmdxError, ValueError):
    """A placement that does not fit the array or the mesh."""


class ShapeError(SpmdxError, ValueError):
    """Shapes that do not fit together."""


class AxisError(ShapeError, IndexError):
    """A dimension out of range, as NumPy's error of this name."""


class DtypeError(SpmdxError, TypeError):
    """A dtype that an operation does not take."""


class ArgumentError(SpmdxError, ValueError):
    """An argument with a value that an operation does not take."""


class RangeError(ArgumentError, OverflowError):
    """A number that the dtype of an array cannot hold."""


class MissingName(SpmdxError, AttributeError):
    """A name of NumPy's, or of another library, that spmdx does not have."""


class KeyReuseError(ArgumentError):
    """Random values drawn from a key that is used up."""


class BoundsError(SpmdxError, IndexError):
    """An index out of range, or one that is not an index at all."""


class ImmutableError(SpmdxError, TypeError):
    """Writing into an array."""


class ImpliedMoveError(PlacementError):
    """Inside `with explicit()`: an operation that would have to communicate."""


class RuleError(SpmdxError, ValueError):
    """A sharding rule that cannot be read, or does not fit its operation."""


class GradientError(SpmdxError, TypeError):
    """A gradient of something that has none."""


class BatchError(SpmdxError, TypeError):
    """Inside vmap: what needs one example's elements."""


class ContextError(SpmdxError, RuntimeError):
    """Blocks of `with` that end out of order, as those in generators can."""


class CheckpointError(SpmdxError, ValueError):
    """A file that cannot be written, or does not hold what it should."""


class RanksDisagree(SpmdxError, RuntimeError):
    """Ranks that should run the same program have come to different collectives or values."""


class WorldError(SpmdxError, RuntimeError):
    """The launcher, the MPI library and the program disagree about the ranks."""


class DeviceError(SpmdxError, RuntimeError):
    """The GPU, its driver or its compiler has failed."""
