"""Examples of the operations of ops/place.py."""

from __future__ import annotations

from case import Case, values

from spmdx.ops.place import alias

CASES = [
    Case("alias", alias, lambda x: x, (values(5, 7, kind="special"),)),
    Case("alias", alias, lambda x: x, (values(0, 3, dtype="complex64"),)),
    Case("alias", alias, lambda x: x, (values(3, kind="bool"),)),
    Case("alias", alias, lambda x: x, (values(1, 3, 2),), grad=(0,)),
]
