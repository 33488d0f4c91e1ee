"""What the Array API asks a library about itself: ``spmdx.__array_namespace_info__()``."""

from __future__ import annotations

from typing import Any

from spmdx import dtypes
from spmdx.errors import MeshError
from spmdx.op import default_mesh
from spmdx.ops.kinds import isdtype

# Those that the standard has; float16 and bfloat16 go beyond it.
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = ("bool", *_INTEGERS, "float32", "float64", "complex64", "complex128")


class Info:
    """Capabilities, devices and dtypes of the library, under the default mesh."""

    def capabilities(self) -> dict[str, Any]:
        """What the library can do beyond the least that the standard asks for."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The kind of device of arrays made without a mesh: the default mesh's."""
        return default_mesh().device

    def devices(self) -> list[str]:
        """The kinds of devices that arrays made without a mesh may have: a device is chosen by a mesh."""
        return [default_mesh().device]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, dtypes.DType]:
        """The dtypes of arrays made from Python numbers, and of indices."""
        self._check(device)
        floats = {"real floating": dtypes.float64, "complex floating": dtypes.complex128}
        return {**floats, "integral": dtypes.int64, "indexing": dtypes.int64}

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, dtypes.DType]:
        """The standard's dtypes by name; only those of a kind, where one is asked for (a word or a tuple of words)."""
        self._check(device)
        found = {name: dtypes.checked(name) for name in _DTYPES}
        return {name: d for name, d in found.items() if kind is None or isdtype(d, kind)}

    def _check(self, device: str | None) -> None:
        if device not in (None, "cpu", "sim", default_mesh().device):
            raise MeshError(f"there is no device {device!r} here.", 'device="cpu"')


def __array_namespace_info__() -> Info:  # noqa: N807  # the standard's name
    """The object through which the Array API asks for capabilities, devices and dtypes."""
    return Info()


__all__ = ["__array_namespace_info__"]
