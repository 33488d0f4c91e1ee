"""How elementwise operations are registered: the rule, the check of dtypes, and bfloat16."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from spmdx.dtypes import ALL, NUMERIC, REAL, bfloat16, float32, promoted
from spmdx.errors import DtypeError
from spmdx.op import op

BITS = "biu"
INTEGERS = "iu"
REAL_OR_BOOL = "b" + REAL
FLOATS = "fV"
_WORDS = {
    NUMERIC: "numbers",
    REAL: "real numbers",
    REAL_OR_BOOL: "real numbers and bools",
    FLOATS: "real floating-point numbers",
    BITS: "integers and bools",
    INTEGERS: "integers",
}
_INSTEAD = {
    NUMERIC: "x.astype(int), or logical_not and logical_xor for bools",
    REAL: "real(x), imag(x) or abs(x) for complex values, x.astype(int) for bools",
    REAL_OR_BOOL: "real(x), imag(x) or abs(x)",
    FLOATS: "x.astype(float)",
    BITS: "x.astype(int)",
    INTEGERS: "x.astype(int)",
}


def pointwise(
    kinds: str = ALL, ufunc: str | None = "", native: bool = False, **traits: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Register an elementwise operation: every dimension is a factor, and operands broadcast.

    Args:
        kinds: letters of the kinds that the operands' common dtype may have; others raise a DtypeError that says so.
        ufunc: NumPy's name of it, if its own is another: what a call seen before runs; None: the body.
        native: bfloat16 has a meaning of its own here; otherwise it is computed in float32 and rounded once.
        traits: ``linear`` and ``monotone``, as :func:`spmdx.op.op` takes them.
    """

    def register(body: Callable[..., Any]) -> Any:
        operands = [p for p in inspect.signature(body).parameters.values() if p.default is p.empty][1:]
        rule = f"{', '.join('...' for _ in operands)} -> ..."
        quick = partial(_quick, body, kinds, body.__name__ if ufunc == "" else ufunc, native)
        return op(rule, fast=quick, **traits)(body)

    return register


def _quick(
    body: Callable[..., Any], kinds: str, ufunc: str | None, native: bool, xp: Any, *dtypes: Any, **static: Any
) -> Any:
    """The function of blocks for operands with these dtypes: NumPy's own, where it has them."""
    check(body.__name__, kinds, dtypes)
    if bfloat16 in dtypes:
        common = promoted(*dtypes)
        inner = None if native or common != bfloat16 else float32
        return partial(_cast_first, xp, partial(body, xp, **static), common, inner)
    return None if static or ufunc is None else getattr(xp, ufunc, None)


def _cast_first(xp: Any, function: Callable[..., Any], common: Any, inner: Any, *blocks: Any) -> Any:
    """ml_dtypes knows neither weak scalars nor wide integers: cast to the common dtype; compute in ``inner``."""
    cast = [xp.asarray(float(b) if type(b) is int else b, common) for b in blocks]
    if inner is None:
        return function(*cast)
    out = xp.asarray(function(*(b.astype(inner) for b in cast)))
    return out.astype(common) if out.dtype == inner else out


def check(name: str, kinds: str, dtypes: tuple[Any, ...]) -> None:
    """Raise a DtypeError that teaches, where the operands' common dtype is of another kind."""
    if kinds == ALL or promoted(*dtypes).kind in kinds:
        return
    shown = " and ".join(d.__name__ if isinstance(d, type) else d.name for d in dtypes)
    raise DtypeError(f"{name} takes {_WORDS[kinds]}; got {shown}.", _INSTEAD[kinds])
