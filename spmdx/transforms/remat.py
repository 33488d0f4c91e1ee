"""remat: what a function made is computed again in the backward pass, instead of being kept.

Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear memory cost", 2016. Which results are saved all the
same is a policy; "attention" is the selective one of Korthikanti and others, "Reducing activation recomputation in
large transformer models", 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

from spmdx import context, tree
from spmdx.array import Array
from spmdx.autodiff import a_function, pull
from spmdx.errors import ArgumentError
from spmdx.spec import Spec
from spmdx.tape import Watched, now
from spmdx.transforms.again import Draws
from spmdx.transforms.batched import innermost, rewrapped, sources
from spmdx.transforms.bundle import bundled

Keeps = Callable[[str, Spec, Sequence[str]], bool]  # of an operation's name, its result's spec, and the parts it is in
Policy = str | Sequence[str] | Keeps

DOTS = frozenset({"matmul", "contract"})
POLICIES: dict[str, Keeps] = {
    "nothing": lambda operation, spec, parts: False,
    "dots": lambda operation, spec, parts: operation in DOTS,
    "attention": lambda operation, spec, parts: "attention" not in parts,
}


def remat(function: Callable[..., Any] | None = None, *, policy: Policy = "nothing") -> Any:
    """``function``, computed again in the backward pass instead of keeping what it made.

    Args:
        function: of pytrees; left out, this is a decorator. Arrays that it closes over get their gradients as well.
        policy: what is saved all the same. "nothing"; "dots", the results of matmul and einsum; "attention",
            everything but what attention makes (scores, weights, their dropout), which is large and cheap; a tuple of
            names, as ``("residual",)``, the values that ``sx.name`` gives them; or a function ``(operation, spec,
            parts) -> bool`` of an operation's name, the spec of its result, and the parts of the model that it is in.

    Gradients are those without it, to the last bit: the same operations run in the same order, and random values are
    functions of key and index; a generator goes back to the state in which the first run found it. Collectives of the
    first run are made again in the second, and counted, unless their results are saved.
    """
    if function is None:
        return lambda function: remat(function, policy=policy)
    a_function(function, "sx.remat(f)(x)")
    keeps, names = _read(policy)
    saves = policy != "nothing"

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not context.get().depth:
            return function(*args, **kwargs)
        # Records know nothing of vmap: what is kept of its arrays, and given back, is what they hold.
        start, batch = now(), context.get().batch
        first = Saving(keeps, names) if saves else None
        draws = Draws()
        with draws.first(saving=first):
            value = function(*args, **kwargs)
        leaves, out_def = tree.flatten(value)
        outputs = list(map(innermost, leaves)) if batch else leaves
        depends = sources(outputs, start)
        kept = {} if first is None else first.kept

        def gradients(g: list[Any]) -> list[Any]:
            again = Saving(keeps, names, kept) if saves else None
            with draws.second(depth=context.get().depth + 1, saving=again, batch=batch):
                made = list(map(innermost, tree.leaves(function(*args, **kwargs))))
            with_g = [(out, c) for out, c in zip(made, g) if c is not None]
            return list(pull([out for out, _ in with_g], [c for _, c in with_g], depends))

        made = bundled(outputs, list(depends), "remat", gradients)
        return tree.unflatten(out_def, [rewrapped(x, new) for x, new in zip(leaves, made)] if batch else made)

    return wrapped


def _read(policy: Policy) -> tuple[Keeps, frozenset[str]]:
    """What of operations' results a policy keeps, and which named values."""
    if callable(policy):
        return policy, frozenset()
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ArgumentError(
                f"remat has no policy {policy!r}: there are {', '.join(map(repr, POLICIES))}.",
                f'policy=("{policy}",) for the values that sx.name(x, "{policy}") names',
            )
        return POLICIES[policy], frozenset()
    if not isinstance(policy, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in policy):
        raise ArgumentError(f"remat has no policy {policy!r}.", 'policy="dots", or ("residual",) for named values')
    return POLICIES["nothing"], frozenset(policy)


class Saving:
    """One run of a rematerialised function. The operations that it records are numbered; in the first run what the
    policy keeps is saved under its number, and in the second taken from there."""

    def __init__(self, keeps: Keeps, names: frozenset[str], kept: dict[int, Any] | None = None) -> None:
        self.keeps, self.names = keeps, names
        self.second = kept is not None
        self.kept: dict[int, Any] = {} if kept is None else kept
        self.parts: tuple[str, ...] = ()
        self._count = 0
        self._numbers: dict[int, int] = {}  # of what was recorded, by its place in the order of making

    def recall(self) -> Any:
        """Count one more operation; its block, if that was saved."""
        self._count += 1
        return self.kept.get(self._count) if self.second else None

    def offer(self, operation: str, made: Watched) -> None:
        """Save the last counted operation's result, if the policy keeps it."""
        if not self.second:
            self._numbers[made.order] = self._count
            if self.keeps(operation, made.spec, self.parts):
                self.kept[self._count] = made._block

    def named(self, x: Any, label: str) -> None:
        """Save a named value, whatever operation made it, if the policy keeps that name."""
        if not self.second and label in self.names:
            for leaf in map(innermost, tree.leaves(x)):
                number = self._numbers.get(leaf.order) if type(leaf) is Watched else None
                if number is not None:
                    self.kept[number] = leaf._block

    def moved(self, arrays: Sequence[Array], targets: Sequence[Spec], move: Callable[[], list[Array]]) -> list[Array]:
        """Arrays of a named value, which a plan moves: counted as operations, so that the move can be spared."""
        blocks = [self.recall() for _ in arrays]
        if arrays and all(block is not None for block in blocks):
            return [Array(block, target) for block, target in zip(blocks, targets)]
        return move()

    def number(self, made: Sequence[Any]) -> None:
        """What the last ``moved`` became, recorded."""
        for n, x in enumerate(made, self._count - len(made) + 1):
            if type(x) is Watched and not self.second:
                self._numbers[x.order] = n
                if self.keeps("redistribute", x.spec, self.parts):
                    self.kept[n] = x._block

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """The operations inside belong to a part of the model."""
        before, self.parts = self.parts, (*self.parts, part)
        try:
            yield
        finally:
            self.parts = before


def part(label: str) -> Callable[[Callable[..., Any]], Any]:
    """Mark a function as a part of a model that a policy of :func:`remat` may speak of."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            saving = context.get().saving
            if saving is None:
                return function(*args, **kwargs)
            with saving.within(label):
                return function(*args, **kwargs)

        return marked

    return mark


__all__ = ["remat"]
