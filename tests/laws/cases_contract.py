"""Examples of contractions: matmul with operands of every number of dimensions, einsum, and their kin."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from case import Case, values

from spmdx.ops import contract as c
from spmdx.ops import products as p
from spmdx.ops.diagonal import diagonal_of

CLOSE = 1e-12
CASES: list[Case] = []


def pair(
    op: str, call: object, oracle: object, left: object, right: object, close: float = CLOSE, grad: bool = True
) -> None:
    """An example with two operands, differentiated in both."""
    CASES.append(Case(op, call, oracle, (left, right), close, (0, 1) if grad else ()))


for left, right in (
    ((5, 7), (7, 3)),
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 2)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((3, 0), (0, 2)),
    ((0, 3), (3, 2)),
    ((1, 1), (1, 4)),
):
    pair("matmul", c.matmul, np.matmul, values(*left), values(*right, seed=1))

square = values(4, 3, kind="integer", dtype="int32"), values(3, 4, kind="integer", dtype="int32", seed=1)
pair("matmul", c.matmul, np.matmul, *square, 0, False)
pair("matmul", c.matmul, np.matmul, square[0] > 0, square[1] > 0, 0, False)
pair("matmul", c.matmul, np.matmul, square[0].astype("uint8"), square[1].astype("int8"), 0, False)
pair(
    "matmul",
    c.matmul,
    np.matmul,
    values(3, 4, dtype="complex128"),
    values(4, 2, dtype="complex128", seed=1),
    grad=False,
)
pair("matmul", c.matmul, np.matmul, values(3, 4, dtype="float32"), values(4, 2, seed=1), 1e-6, False)
for kind, close in (("float16", 4e-3), (ml_dtypes.bfloat16, 4e-2)):
    pair(
        "matmul",
        c.matmul,
        lambda x, y: (x.astype("f4") @ y.astype("f4")).astype(x.dtype),
        values(4, 5).astype(kind),
        values(5, 3, seed=1).astype(kind),
        close,
        False,
    )

for subscripts, left, right in (
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ji,jk->ki", (4, 3), (4, 5)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    ("bij,kjb->kbi", (2, 3, 4), (3, 4, 2)),
    ("ij,ij->", (3, 4), (3, 4)),
    ("i,j", (3,), (4,)),
    ("ij,kl->ikjl", (2, 3), (3, 2)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ii,ij->j", (4, 4), (4, 3)),
    ("ij,kk->i", (3, 4), (4, 4)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,...j->...i", (1, 3, 4), (2, 4)),
    ("ij,ij->ij", (3, 1), (3, 5)),
    ("ijk,kl,->ijl".replace(",->", "->"), (2, 3, 0), (0, 2)),
):
    pair(
        "contract",
        lambda x, y, s=subscripts: c.einsum(s, x, y),
        lambda x, y, s=subscripts: np.einsum(s, x, y),
        values(*left),
        values(*right, seed=1),
    )

for subscripts, shape in (
    ("ii->", (5, 5)),
    ("ii->i", (5, 5)),
    ("iij->ji", (3, 3, 2)),
    ("iji->j", (3, 2, 3)),
    ("iii->i", (3, 3, 3)),
    ("ij->j", (3, 5)),
    ("ijk->kij", (2, 3, 4)),
    ("...i->...", (2, 3, 4)),
    ("ba", (3, 4)),
):
    CASES.append(
        Case(
            "diagonal",
            lambda x, s=subscripts: c.einsum(s, x),
            lambda x, s=subscripts: np.einsum(s, x),
            (values(*shape),),
            CLOSE,
            (0,),
        )
    )

CASES += [
    Case(
        "on_diagonal",
        lambda x: c.einsum("iij->ij", x),
        lambda x: np.einsum("iij->ij", x),
        (values(4, 4, 2),),
        0,
        (0,),
    ),
    Case(
        "contract",
        lambda x, y, z: c.einsum("ij,jk,kl->il", x, y, z),
        lambda x, y, z: np.einsum("ij,jk,kl->il", x, y, z),
        (values(3, 4), values(4, 2, seed=1), values(2, 5, seed=2)),
        CLOSE,
        (0, 1, 2),
    ),
    Case(
        "contract",
        lambda x, y, z: c.einsum("bi,bj,ij->b", x, y, z),
        lambda x, y, z: np.einsum("bi,bj,ij->b", x, y, z),
        (values(3, 4), values(3, 2, seed=1), values(4, 2, seed=2)),
        CLOSE,
        (0, 1, 2),
    ),
    Case(
        "contract",
        lambda x, y: c.einsum(x, [0, 1], y, [1, 2], [2, 0]),
        lambda x, y: np.einsum(x, [0, 1], y, [1, 2], [2, 0]),
        (values(3, 4), values(4, 2, seed=1)),
        CLOSE,
    ),
]
pair("contract", p.vecdot, np.vecdot, values(2, 5), values(3, 1, 5, seed=1))
pair(
    "contract",
    p.vecdot,
    np.vecdot,
    values(3, 4, dtype="complex128"),
    values(4, dtype="complex128", seed=1),
    grad=False,
)
pair(
    "contract",
    lambda x, y: p.vecdot(x, y, axis=-2),
    lambda x, y: (x * y).sum(-2),
    values(5, 3),
    values(5, 1, seed=1),
)
pair("contract", p.tensordot, np.tensordot, values(2, 3, 4), values(3, 4, 2, seed=1))
pair(
    "contract",
    lambda x, y: p.tensordot(x, y, axes=((0, 2), (1, 0))),
    lambda x, y: np.tensordot(x, y, axes=((0, 2), (1, 0))),
    values(2, 3, 4),
    values(4, 2, 3, seed=1),
)
pair(
    "contract",
    lambda x, y: p.tensordot(x, y, 0),
    lambda x, y: np.tensordot(x, y, 0),
    values(2),
    values(3, seed=1),
)
pair("contract", lambda x, y: p.tensordot(x, y, 0), lambda x, y: np.tensordot(x, y, 0), values(), values(seed=1))
pair("contract", p.outer, np.outer, values(5), values(3, seed=1))
pair("contract", p.outer, np.outer, values(2, 2), values(3, seed=1))
pair("contract", p.inner, np.inner, values(2, 4), values(3, 4, seed=1))
pair("contract", p.dot, np.dot, values(2, 4), values(4, seed=1))
pair("contract", p.dot, np.dot, values(2, 2, 4), values(3, 4, 2, seed=1))
pair(
    "contract",
    lambda x, y: c.einsum("ij,jk->ki", x, y),
    lambda x, y: (x.astype("f4") @ y.astype("f4")).T.astype("f2"),
    values(4, 5, dtype="float16"),
    values(5, 3, dtype="float16", seed=1),
    4e-3,
    False,
)
CASES.append(
    Case("diagonal", lambda x: diagonal_of(x, 0, 2), lambda x: np.einsum("iji->ij", x), (values(3, 2, 3),), 0, (0,))
)
