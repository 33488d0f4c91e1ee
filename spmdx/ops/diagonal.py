"""The diagonal of two dimensions, and its opposite. Where one of them is divided, each rank takes its own part."""

from __future__ import annotations

from typing import Any

from spmdx.array import Array
from spmdx.decide import Bounds
from spmdx.op import op
from spmdx.ops.axes import names
from spmdx.rule import Form


def diagonal_of(x: Array, first: int, second: int) -> Any:
    """The elements whose indices along two dimensions agree: dimension ``second`` is dropped."""
    divided = [bool(x.spec.layouts[d].axes) for d in (first, second)]
    return _diagonal(x, first, second, second if divided == [False, True] else first)


def on_diagonal(x: Array) -> Any:
    """The matrix that has a vector on its diagonal, and zeros elsewhere; a divided vector divides the rows."""
    return _on_diagonal(x, 0, 1, 0)


def _dims(ndim: int, first: int, second: int, along: int) -> tuple[str, str]:
    """The factors before and after: of the pair of dimensions, the one to be divided is the factor."""
    whole = second if along == first else first
    d = names(ndim)
    d[first] = d[second] = f"d{first}"
    after = " ".join(n for i, n in enumerate(d) if i != second)
    d[whole] = f"[w{whole}]"
    return " ".join(d), after


def _rule(x: tuple[int, ...], first: int, second: int, along: int) -> str:
    return " -> ".join(_dims(len(x), first, second, along))


@op(_rule, linear="each", bounds=True)
def _diagonal(xp: Any, at: Bounds, x: Any, first: int, second: int, along: int) -> Any:
    """The diagonal of two dimensions, of which ``along`` may be divided."""
    whole = second if along == first else first
    index = at.indices(at.inputs[0][along], xp)
    rows = xp.moveaxis(x, (along, whole), (0, 1))
    return xp.moveaxis(rows[xp.arange(len(index)), index], 0, first)


def _opposite_rule(x: tuple[int, ...], first: int, second: int, along: int) -> Any:
    before, after = _dims(len(x) + 1, first, second, along)
    whole = second if along == first else first
    return Form(f"{after} -> {before}", {f"w{whole}": x[first]})


@op(_opposite_rule, linear="each", bounds=True)
def _on_diagonal(xp: Any, at: Bounds, x: Any, first: int, second: int, along: int) -> Any:
    """Zeros with x on the diagonal of two dimensions."""
    whole = second if along == first else first
    index = at.indices(at.output[along], xp)
    out = xp.zeros(at.shape, x.dtype)
    rows = xp.moveaxis(out, (along, whole), (0, 1))
    rows[xp.arange(len(index)), index] = xp.moveaxis(x, first, 0)
    return out


_diagonal.vjp(lambda g, out, x, **which: _on_diagonal(g, **which))
_on_diagonal.vjp(lambda g, out, x, **which: _diagonal(g, **which))
