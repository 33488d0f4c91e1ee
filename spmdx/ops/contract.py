"""Products that sum: matmul and einsum. Everything but the quick matmul is pairwise contractions, each an
operation whose rule is read off its subscripts, so that whatever may stay sharded or Partial does."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from string import ascii_letters
from typing import Any, NamedTuple

import numpy as np

from spmdx import dtypes
from spmdx.array import Array
from spmdx.dtypes import NARROW
from spmdx.errors import ArgumentError, ShapeError
from spmdx.op import op
from spmdx.ops import elementwise as e
from spmdx.ops.diagonal import diagonal_of
from spmdx.ops.fit import fit
from spmdx.ops.place import arrays
from spmdx.ops.reduce import sum
from spmdx.ops.shape import matrix_transpose, permute_dims, squeeze
from spmdx.ops.together import seen
from spmdx.runtime import blas, memory
from spmdx.runtime.kernels import product

# One pair


class Recipe(NamedTuple):
    """How one contraction is a batched matrix product: orders of the dimensions, and how many are of each kind."""

    left: tuple[int, ...]  # batch, rows, contracted
    right: tuple[int, ...]  # batch, contracted, columns
    out: tuple[int, ...]  # of batch, rows, columns
    batch: int
    rows: int
    summed: int


@lru_cache(maxsize=1024)
def recipe(subscripts: str) -> Recipe:
    """The recipe of ``"ab,bc->ac"``: no letter twice in an operand, and none in a single operand and nowhere else."""
    ins, _, out = subscripts.partition("->")
    left, right = ins.split(",")
    batch = [c for c in out if c in left and c in right]
    rows = [c for c in out if c in left and c not in right]
    columns = [c for c in out if c in right and c not in left]
    summed = [c for c in left if c in right and c not in out]
    made = [*batch, *rows, *columns]
    return Recipe(
        tuple(left.index(c) for c in [*batch, *rows, *summed]),
        tuple(right.index(c) for c in [*batch, *summed, *columns]),
        tuple(made.index(c) for c in out),
        len(batch),
        len(rows),
        len(summed),
    )


def _factors(left: tuple[int, ...], right: tuple[int, ...], subscripts: str) -> str:
    return " ".join(subscripts.replace(",", " , ").replace("->", " > ")).replace(">", "->")


def _in_float32(function: Any, x: Any, y: Any) -> Any:
    """The product of operands of which one is float16 or bfloat16, accumulated in float32 and rounded once."""
    out = dtypes.promoted(x.dtype, y.dtype)
    if memory.on_device(x):  # cuBLAS adds in float32 itself
        return function(x.astype(out, copy=False), y.astype(out, copy=False))
    wide = dtypes.promoted(out, dtypes.float32)
    return function(x.astype(wide), y.astype(wide)).astype(out)


def _multiply(xp: Any, how: Recipe, x: Any, y: Any) -> Any:
    x, y = x.transpose(how.left), y.transpose(how.right)
    batch, split = how.batch, how.batch + how.summed
    edges = (*x.shape[: batch + how.rows], *y.shape[split:])
    if not how.summed:
        x = x.reshape((*x.shape, *[1] * (y.ndim - split)))
        y = y.reshape((*y.shape[:batch], *[1] * how.rows, *y.shape[split:]))
        return xp.multiply(x, y).transpose(how.out)
    x, y = _matrices(how, x, y)
    return blas.matmul(xp)(x, y).reshape(edges).transpose(how.out)


def _matrices(how: Recipe, x: Any, y: Any) -> tuple[Any, Any]:
    """Transposed operands as matrices, or stacks of them."""
    batch, split = how.batch, how.batch + how.summed
    m, k, n = math.prod(x.shape[batch : batch + how.rows]), math.prod(y.shape[batch:split]), math.prod(y.shape[split:])
    return x.reshape(*x.shape[:batch], m, k), y.reshape(*y.shape[:batch], k, n)


def _quick_pair(xp: Any, left: Any, right: Any, subscripts: str) -> Any:
    if left in NARROW or right in NARROW:
        return None
    how = recipe(subscripts)
    straight = [list(order) == sorted(order) for order in how[:3]]
    if all(straight) and how.summed == how.rows == len(how.right) - how.batch - how.summed == 1:
        return blas.matmul(xp)
    return partial(_multiply, xp, how)


@op(_factors, arrays=2, linear="each", fast=_quick_pair)
def contract(xp: Any, x: Any, y: Any, subscripts: str) -> Any:
    """The sum of products that subscripts say, of two operands: one step of an einsum."""
    product = partial(_multiply, xp, recipe(subscripts))
    return _in_float32(product, x, y)


def _turned(subscripts: str, which: int) -> str:
    """The subscripts of the gradient of one operand, given the output's and the other operand."""
    ins, _, out = subscripts.partition("->")
    left, right = ins.split(",")
    return canonical(f"{out},{right}->{left}") if which == 0 else canonical(f"{left},{out}->{right}")


contract.vjp(
    lambda g, out, x, y, subscripts: fit(contract(g, y, _turned(subscripts, 0)), x),
    lambda g, out, x, y, subscripts: fit(contract(x, g, _turned(subscripts, 1)), y),
)


def _onto(before: Any, i: int, g: Any, x: Any, y: Any, subscripts: str) -> bool:
    """A gradient added to one that came before, by the library that multiplies: without another pass over both."""
    turned = _turned(subscripts, i)
    first, second = (g, y) if i == 0 else (x, g)
    if type(before) is not Array or seen(contract, first, second, turned) is not before.spec:
        return False
    into, how = before._block, recipe(turned)
    if not (isinstance(into, np.ndarray) and how.summed and not how.batch):
        return False
    lying = into.transpose(np.argsort(how.out))
    if not lying.flags.c_contiguous:
        return False
    left, right = _matrices(how, first._block.transpose(how.left), second._block.transpose(how.right))
    return product(left, right, lying.reshape(left.shape[0], right.shape[1])) is not None


contract.op.onto = _onto


def letter(i: int) -> str:
    """The i-th letter for subscripts: the alphabet's first, then any others that count as letters."""
    return ascii_letters[i] if i < len(ascii_letters) else chr(0x100 + i)


@lru_cache(maxsize=1024)
def canonical(subscripts: str) -> str:
    """The same subscripts in letters of their order of appearance, so that equal contractions are one to the memo."""
    letters = dict.fromkeys(c for c in subscripts if c not in ",->")
    table = {ord(c): letter(i) for i, c in enumerate(letters)}
    return subscripts.translate(table)


# matmul: the quick way for what programs do most


def _matmul_rule(x: tuple[int, ...], y: tuple[int, ...]) -> str:
    if not x or not y:
        raise ShapeError(f"matmul needs operands of 1 dimension or more; got shapes {x} and {y}.", "x * y")
    left = "k" if len(x) == 1 else "... m k"
    right = "k" if len(y) == 1 else "... k n"
    batch = "..." if len(x) > 1 or len(y) > 1 else ""
    out = f"{batch} {'m' if len(x) > 1 else ''} {'n' if len(y) > 1 else ''}"
    return f"{left}, {right} -> {out}"


def _quick_matmul(xp: Any, left: Any, right: Any) -> Any:
    return None if left in NARROW or right in NARROW else blas.matmul(xp)


@op(_matmul_rule, arrays=2, linear="each", fast=_quick_matmul)
def matmul(xp: Any, x: Any, y: Any) -> Any:
    """Matrix product over the last dimension of x and the last but one of y; the others broadcast; vectors as NumPy's.

    float16 and bfloat16 are accumulated in float32 and rounded once. A sharded sum gives Partial("sum").
    """
    return _in_float32(blas.matmul(xp), x, y)


def _matmul_left(g: Array, out: Array, x: Array, y: Array) -> Any:
    if y.ndim == x.ndim == 2:
        return fit(matmul(g, permute_dims(y, (1, 0))), x)
    if y.ndim == 2 and x.ndim > 1:
        return fit(einsum("...n,kn->...k", g, y), x)
    if x.ndim > 1 and y.ndim > 1:
        return fit(matmul(g, matrix_transpose(y)), x)
    if y.ndim == 1:
        return fit(einsum("...,k->...k", g, y), x)
    return fit(einsum("...n,...kn->k", g, y), x)


def _matmul_right(g: Array, out: Array, x: Array, y: Array) -> Any:
    if y.ndim == x.ndim == 2:
        return fit(matmul(permute_dims(x, (1, 0)), g), y)
    if y.ndim == 2 and x.ndim > 1:
        return fit(einsum("...mk,...mn->kn", x, g), y)
    if x.ndim > 1 and y.ndim > 1:
        return fit(matmul(matrix_transpose(x), g), y)
    if x.ndim == 1:
        return fit(einsum("k,...n->...kn" if y.ndim > 1 else "k,...->k", x, g), y)
    return fit(einsum("...k,...->k", x, g), y)


matmul.vjp(_matmul_left, _matmul_right)

# einsum


Step = tuple[str, Any, Any]  # a verb, the operand or pair of operands, and the argument


def einsum(subscripts: Any, *operands: Any, optimize: Any = "auto") -> Array:
    """The Einstein sum: letters name dimensions; those that the output does not name are summed over.

    Args:
        subscripts: ``"ij,jk->ik"``; repeated letters, ``...`` and an implicit output as in NumPy. Or NumPy's other
            form: ``einsum(x, [0, 1], y, [1, 2], [0, 2])``.
        optimize: how opt_einsum looks for the order of contraction ("auto", "optimal", "greedy", ...).

    Each pair of operands is one operation; a summed dimension that is sharded gives Partial("sum"). The result has
    the dtype that the operands promote to, as NumPy's: sums of narrow integers do not widen.
    """
    if isinstance(subscripts, str):
        lists: list[Any] = []
    else:
        both = (subscripts, *operands)
        n = len(both) // 2 * 2
        operands, lists = both[:n:2], [*both[1:n:2], *both[n:]]
        if not lists or not all(isinstance(each, (list, tuple)) for each in lists):
            got = ", ".join(type(each).__name__ for each in both)
            raise ArgumentError(
                f"einsum: operands without a string are followed each by a list of numbers; got {got}.",
                '"ij,jk->ik" first, or x, [0, 1], y, [1, 2], [0, 2]',
            )
    given = arrays(*operands)
    shapes = tuple([x.shape for x in given])
    ins, out = _read(subscripts, shapes) if not lists else _read_lists(lists, shapes)
    way = steps(ins, out, shapes, optimize if isinstance(optimize, str) else "auto")
    common = None if [verb for verb, *_ in way] == ["contract"] else dtypes.promoted(*(x.dtype for x in given))
    if len(given) > 2:  # or the first pair would be rounded, or wrap, in a narrower dtype
        given = [e.astype(x, common) for x in given]
    for verb, which, argument in way:
        if verb == "contract":
            y, x = given.pop(which[1]), given.pop(which[0])
            given.append(contract(x, y, argument))
        elif verb == "sum":
            given[which] = sum(given[which], argument, common)
        else:
            given[which] = _UNARY[verb](given[which], argument)
    return given[0]


_UNARY = {"squeeze": squeeze, "permute": permute_dims, "diagonal": lambda x, dims: diagonal_of(x, *dims)}


@lru_cache(maxsize=1024)
def _read(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[str, str]:
    """Input and output subscripts, with ellipses and an implicit output written out."""
    if subscripts.partition("->")[0].count(",") + 1 != len(shapes):
        raise ArgumentError(
            f"einsum: {subscripts!r} is not for {len(shapes)} operands.", '"ij,jk->ik", a term for each'
        )
    return _parsed((subscripts, *shapes))


def _read_lists(lists: list[Any], shapes: tuple[tuple[int, ...], ...]) -> tuple[str, str]:
    pairs = [part for pair in zip(shapes, lists) for part in pair]
    return _parsed((*pairs, *lists[len(shapes) :]))


def _parsed(given: tuple[Any, ...]) -> tuple[str, str]:
    import opt_einsum  # here: most programs do without, and start quicker

    try:
        ins, out, _ = opt_einsum.parser.parse_einsum_input(given, shapes=True)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ArgumentError(
            f"einsum cannot read its subscripts: {error}", '"ij,jk->ik", a term for each operand'
        ) from None
    return ins, out


@lru_cache(maxsize=1024)
def steps(ins: str, out: str, shapes: tuple[tuple[int, ...], ...], optimize: str) -> tuple[Step, ...]:
    """The operations of an einsum, from subscripts and shapes alone.

    "contract" takes a pair of operands away and puts what it makes at the end; the other verbs change one in place.

    Raises:
        ShapeError: a letter with two lengths, or an operand with another number of dimensions than letters.
    """
    import opt_einsum  # here, as above

    terms, made = ins.split(","), list[Step]()
    sizes = _sizes(terms, shapes)
    if len(set(out)) != len(out) or not set(out) <= set(sizes):
        raise ArgumentError(
            f"einsum: the output {out!r} of {ins!r} has a letter twice, or one that is in no operand.",
            '"ij,jk->ik": each letter of the output once, from the operands',
        )
    for i, (term, shape) in enumerate(zip(terms, shapes)):
        terms[i] = _plain(i, term, shape, sizes, made)
    lengths = [tuple(sizes[c] for c in term) for term in terms]
    path, _ = opt_einsum.contract_path(f"{','.join(terms)}->{out}", *lengths, shapes=True, optimize=optimize)
    for together in path:
        numbers = sorted(together)
        while len(numbers) > 1:
            i, j, *others = numbers
            _pair(terms, i, j, out, made)
            numbers = [n - (n > i) - (n > j) for n in others] + [len(terms) - 1] * bool(others)
    term = _summed(0, terms[0], set(out), made)
    if term != out:
        made.append(("permute", 0, tuple(term.index(c) for c in out)))
    return tuple(made)


def _sizes(terms: list[str], shapes: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes):
        if len(term) != len(shape):
            raise ShapeError(
                f"einsum: {term!r} names {len(term)} dimensions; its operand has shape {shape}.",
                "a letter for each dimension",
            )
        for c, n in zip(term, shape):
            known = sizes.setdefault(c, n)
            if known == 1:
                sizes[c] = n
            elif n not in (1, known):
                raise ShapeError(
                    f"einsum: {c!r} is both {known} and {n}: {', '.join(terms)} of {shapes}.",
                    "a letter of its own for each length",
                )
    return sizes


def _plain(i: int, term: str, shape: tuple[int, ...], sizes: dict[str, int], made: list[Step]) -> str:
    """Without dimensions of size 1 that stretch to another operand's, and with every letter once: diagonals taken."""
    stretched = tuple(d for d, (c, n) in enumerate(zip(term, shape)) if n != sizes[c])
    if stretched:
        made.append(("squeeze", i, stretched))
        term = "".join(c for d, c in enumerate(term) if d not in stretched)
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            first, second = term.index(c), term.index(c, term.index(c) + 1)
            made.append(("diagonal", i, (first, second)))
            term = term[:second] + term[second + 1 :]
    return term


def _summed(i: int, term: str, kept: set[str], made: list[Step]) -> str:
    """With the letters that nothing else has summed over."""
    alone = tuple(d for d, c in enumerate(term) if c not in kept)
    if alone:
        made.append(("sum", i, alone))
    return "".join(c for c in term if c in kept)


def _pair(terms: list[str], i: int, j: int, out: str, made: list[Step]) -> None:
    others = set(out).union(*(term for k, term in enumerate(terms) if k not in (i, j)))
    x = _summed(i, terms[i], others | set(terms[j]), made)
    y = _summed(j, terms[j], others | set(x), made)
    del terms[j], terms[i]
    product = [c for c in x if c in others and c in y] + [c for c in x if c in others and c not in y]
    product += [c for c in y if c in others and c not in x]
    terms.append("".join(product) if terms else out)
    made.append(("contract", (i, j), canonical(f"{x},{y}->{terms[-1]}")))


__all__ = ["einsum", "matmul"]
