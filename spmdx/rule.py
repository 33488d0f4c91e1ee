"""The factor-string grammar of sharding rules: parsing, and binding a rule to shapes.

``"... m k, ... k n -> ... m n"``: each dimension of each operand is named by a factor. A factor on both sides may be
sharded, and the output follows; one on the left only is reduced, so sharding it gives a Partial. ``[k]`` must be
whole; of ``(h d)`` only the leading factor may be sharded; ``1`` is a dimension of size 1; ``...`` stands for any
number of dimensions that broadcast as NumPy's do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from spmdx.errors import RuleError, ShapeError

_TOKEN = re.compile(r"\s*(\.\.\.|\[\w+\]|\([\w\s]*\)|\w+)")


class Dim(NamedTuple):
    """One dimension of an operand: its factors, outermost first. No factors: a dimension of size 1."""

    factors: tuple[str, ...]


ELLIPSIS = Dim(("...",))
Resize = Callable[[tuple[int, ...]], tuple[int, ...]]


class Rule(NamedTuple):
    """A parsed rule: dimensions of each input and of the output, and the factors that must be whole."""

    inputs: tuple[tuple[Dim, ...], ...]
    output: tuple[Dim, ...]
    whole: frozenset[str]
    text: str


class Form(NamedTuple):
    """A rule for one call: the text; sizes that no shape tells; and factors whose length changes on the way, as
    (length out, function of the lengths of all blocks -> their lengths out), as slicing does."""

    text: str
    sizes: Mapping[str, int] = {}
    resize: Mapping[str, tuple[int, Resize]] = {}


class Bound(NamedTuple):
    """A rule bound to shapes."""

    inputs: tuple[tuple[Dim, ...], ...]
    output: tuple[Dim, ...]
    sizes: Mapping[str, int]
    resize: Mapping[str, tuple[int, Resize]]
    shardable: tuple[str, ...]  # factors of some input, in order of appearance
    reduced: frozenset[str]

    @property
    def shape(self) -> tuple[int, ...]:
        """Global shape of the output."""
        return tuple(math.prod(self.length(f) for f in dim.factors) for dim in self.output)

    def length(self, factor: str) -> int:
        """Length of a factor in the output."""
        return self.resize[factor][0] if factor in self.resize else self.sizes[factor]


@lru_cache(maxsize=4096)
def parse(text: str) -> Rule:
    """Read a rule.

    Raises:
        RuleError: text that is not a rule, with the place where reading stopped.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise RuleError(f"rule {text!r} has no arrow.", '"inputs -> output", for example "m k, k n -> m n"')
    whole: set[str] = set()
    inputs = tuple(_operand(part, text, whole) for part in left.split(",")) if left.strip() else ()
    if not left.strip():
        inputs = ((),)
    return Rule(inputs, _operand(right, text, whole), frozenset(whole), text)


def _operand(part: str, text: str, whole: set[str]) -> tuple[Dim, ...]:
    dims, at, part = [], 0, part.rstrip()
    while at < len(part):
        found = _TOKEN.match(part, at)
        if found is None:
            raise RuleError(
                f"rule {text!r} cannot be read at {part[at:]!r}.", "factors, [whole], (outer inner), 1 or ..."
            )
        token, at = found.group(1), found.end()
        if token.startswith("["):
            whole.add(token[1:-1])
            dims.append(Dim((token[1:-1],)))
        elif token.startswith("("):
            dims.append(Dim(tuple(token[1:-1].split())))
        else:
            dims.append(Dim(() if token == "1" else (token,)))
    if dims.count(ELLIPSIS) > 1:
        raise RuleError(f"rule {text!r} has two ellipses in one operand.", "at most one ... in each operand")
    return tuple(dims)


def bind(form: str | Form, shapes: Sequence[tuple[int, ...]], name: str) -> Bound:
    """Bind a rule to the operands' shapes.

    Raises:
        ShapeError: shapes that do not fit the rule or one another.
    """
    form = Form(form) if isinstance(form, str) else form
    rule = parse(form.text)
    if len(rule.inputs) != len(shapes):
        raise RuleError(
            f"{name}: rule {rule.text!r} has {len(rule.inputs)} operands; got {len(shapes)}.",
            "a rule with one term, between commas, for each operand",
        )
    spread = [_spread(dims, len(shape), rule, name, shape) for dims, shape in zip(rule.inputs, shapes)]
    batch = max((len(shape) - len(dims) + 1 for dims, shape in zip(rule.inputs, shapes) if ELLIPSIS in dims), default=0)
    output = _expand(rule.output, batch)
    sizes = dict(form.sizes)
    for dims, shape in zip(spread, shapes):
        for dim, n in zip(dims, shape):
            if len(dim.factors) == 1:
                f = dim.factors[0]
                known = sizes.get(f)
                if known is None or (known == 1 and f.startswith("~")):
                    sizes[f] = n
                elif n != known and not (n == 1 and f.startswith("~")):
                    raise _misfit(name, rule, shapes, f, known, n)
    unknown = {f for dims in (*spread, output) for dim in dims for f in dim.factors} - sizes.keys()
    if unknown:
        raise RuleError(
            f"{name}: no shape tells how long {', '.join(sorted(unknown))} of rule {rule.text!r} is.",
            f'a function as the rule, which returns Form({rule.text!r}, {{"{min(unknown)}": 3}})',
        )
    inputs = []
    for dims, shape in zip(spread, shapes):
        bound = []
        for dim, n in zip(dims, shape):
            stretched = len(dim.factors) == 1 and dim.factors[0].startswith("~") and n != sizes[dim.factors[0]]
            bound.append(Dim(()) if stretched else dim)
            if not stretched and math.prod(sizes[f] for f in dim.factors) != n:
                raise _misfit(name, rule, shapes, " ".join(dim.factors), math.prod(sizes[f] for f in dim.factors), n)
        inputs.append(tuple(bound))
    return _bound(tuple(inputs), output, sizes, form, rule)


def _bound(
    inputs: tuple[tuple[Dim, ...], ...], output: tuple[Dim, ...], sizes: dict[str, int], form: Form, rule: Rule
) -> Bound:
    barred = set(rule.whole)
    for dims in (*inputs, output):
        names = [f for dim in dims for f in dim.factors]
        barred |= {f for dim in dims for f in dim.factors[1:]} | {f for f in names if names.count(f) > 1}
    seen = dict.fromkeys(f for dims in inputs for dim in dims for f in dim.factors)
    out = {f for dim in output for f in dim.factors}
    return Bound(
        inputs, output, sizes, form.resize, tuple(f for f in seen if f not in barred), frozenset(seen.keys() - out)
    )


def _spread(dims: tuple[Dim, ...], ndim: int, rule: Rule, name: str, shape: tuple[int, ...]) -> tuple[Dim, ...]:
    batch = ndim - len(dims) + (ELLIPSIS in dims)
    if batch < 0 or (batch > 0 and ELLIPSIS not in dims):
        need = len(dims) - (ELLIPSIS in dims)
        raise ShapeError(
            f"{name} needs an operand of {'at least ' if ELLIPSIS in dims else ''}{need} dimensions (rule "
            f"{rule.text!r}); got shape {shape}.",
            "x[None] or x.reshape(...) to give it the dimensions that are missing" if batch < 0 else "",
        )
    return _expand(dims, batch)


def _expand(dims: tuple[Dim, ...], batch: int) -> tuple[Dim, ...]:
    """Replace ``...`` by ``batch`` factors, named by their distance from the last, so that they align as NumPy's."""
    if ELLIPSIS not in dims:
        return dims
    at = dims.index(ELLIPSIS)
    return (*dims[:at], *(Dim((f"~{k}",)) for k in reversed(range(batch))), *dims[at + 1 :])


def _misfit(name: str, rule: Rule, shapes: Sequence[tuple[int, ...]], factor: str, a: int, b: int) -> ShapeError:
    shown = " and ".join(map(str, shapes))
    if factor.startswith("~"):
        return ShapeError(
            f"{name}: shapes {shown} do not broadcast: {a} against {b}.", "shapes that agree or are 1, from the last"
        )
    return ShapeError(
        f"{name}: shapes {shown} do not fit {rule.text!r}: {factor} is both {a} and {b}.",
        "operands whose dimensions of one name have one length (a transpose or reshape may be missing)",
    )
