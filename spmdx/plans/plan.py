"""Plans: path patterns to placements, for parameters, named values, gradients and optimizer state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from spmdx import context
from spmdx.decide import asked_mesh
from spmdx.errors import ArgumentError, MeshError
from spmdx.mesh import Mesh
from spmdx.placement import Placement
from spmdx.plans.placing import Axes, Spread, Word, changed, checked, means
from spmdx.spec import Spec, place

Pattern = str | re.Pattern[str]
Entries = Mapping[Any, Axes]  # by Pattern
KINDS = ("params", "names", "gather", "grads", "state")


class Rule(NamedTuple):
    """One line of a plan."""

    pattern: Pattern
    axes: dict[str, Word]

    def fits(self, path: str) -> bool:
        """True if the pattern is this path's."""
        return fnmatchcase(path, self.pattern) if isinstance(self.pattern, str) else bool(self.pattern.search(path))

    @property
    def text(self) -> str:
        """The pattern, to be read."""
        return self.pattern if isinstance(self.pattern, str) else self.pattern.pattern


def _entries(x: Any) -> str:
    return repr(x) if isinstance(x, Mapping) else '{"PATTERN": {"model": sx.Shard(0)}}'


def _rules(kind: str, entries: Any) -> tuple[Rule, ...]:
    """The lines of one kind, if they are patterns and what a plan may say of them."""
    if entries is None:
        return ()
    if not isinstance(entries, Mapping) or not all(isinstance(p, (str, re.Pattern)) for p in entries):
        raise ArgumentError(
            f"a plan's {kind} are a dict of patterns, strings or compiled ones, to placements; got {entries!r}.",
            'sx.Plan({"blocks.*.up": {"model": sx.Shard(1)}})',
        )
    return tuple(Rule(p, checked(axes, p if isinstance(p, str) else p.pattern)) for p, axes in entries.items())


class Plan:
    """Where the pieces of a model lie: patterns of paths to placements, apart from the model.

    Args:
        params: of parameters by path, as ``"layers.*.mlp.up"``.
        names: of values that the model names, ``sx.name(x, "residual")``; on axes that the entry leaves out, a value
            stays where it is.
        gather: of the first argument of functions that the model names, ``sx.name(block, "block")``: its arrays are
            brought there just before the call, in one message, dropped after it, and brought again for the
            gradient; the gradients go home in one message.
        grads: of the parameters' gradients, where they differ from the parameters.
        state: of the optimizer's arrays, where they differ from the parameters.
        bucket: how many bytes of gradients go home together, as soon as they are there; 25 MiB if left out. The rest
            goes at the end of the walk backwards, so that less than a bucket is one message.

    An entry is a dict of mesh axis to ``Shard``, ``Replicate`` or ``Spread``. Patterns are fnmatch's (``*`` also
    crosses dots), or compiled regular expressions that are searched for. Every pattern that fits counts; where two
    speak of one mesh axis, the later wins. ``a | b`` is the plan with b's lines after a's.
    """

    rules: dict[str, tuple[Rule, ...]]

    def __init__(
        self,
        params: Entries | None = None,
        *,
        names: Entries | None = None,
        gather: Entries | None = None,
        grads: Entries | None = None,
        state: Entries | None = None,
        bucket: int | None = None,
    ) -> None:
        given = (params, names, gather, grads, state)
        self.rules = {kind: _rules(kind, entries) for kind, entries in zip(KINDS, given)}
        if bucket is not None and (isinstance(bucket, bool) or not isinstance(bucket, int) or bucket < 1):
            raise ArgumentError(f"a bucket is a number of bytes above 0; got {bucket!r}.", "sx.Plan(bucket=25 * 2**20)")
        self.bucket = bucket
        self._found: dict[tuple[str, str], dict[str, Word]] = {}

    def __or__(self, other: Plan) -> Plan:
        if not isinstance(other, Plan):
            raise ArgumentError(f"plans are combined with plans; got {other!r}.", f"plan | sx.Plan({_entries(other)})")
        made = Plan()
        made.rules = {kind: (*self.rules[kind], *other.rules[kind]) for kind in KINDS}
        made.bucket = self.bucket if other.bucket is None else other.bucket
        return made

    def __ror__(self, other: Any) -> Plan:
        raise ArgumentError(f"plans are combined with plans; got {other!r}.", f"sx.Plan({_entries(other)}) | plan")

    def __repr__(self) -> str:
        lines = [f"  {kind}: {r.text} -> {r.axes}" for kind, rules in self.rules.items() for r in rules]
        lines += [] if self.bucket is None else [f"  bucket: {self.bucket} bytes"]
        return "\n".join(["Plan(", *lines, ")"])

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it speaks of."""
        return tuple(dict.fromkeys(a for rules in self.rules.values() for r in rules for a in r.axes))

    def find(self, kind: str, path: Any) -> dict[str, Word]:
        """What the lines of one kind say of a path, mesh axis by mesh axis."""
        path = path if isinstance(path, str) else ".".join(map(str, path))
        found = self._found.get((kind, path))
        if found is None:
            found = {}
            for rule in self.rules[kind]:
                if rule.fits(path):
                    found.update(rule.axes)
            self._found[kind, path] = found
        return found

    def spec(self, path: Any, shape: Iterable[int], dtype: Any = np.float64, mesh: Mesh | None = None) -> Spec:
        """The spec of a parameter on a mesh (the default mesh if left out)."""
        whole = place(asked_mesh(mesh), tuple(shape), dtype)
        return changed(whole, self.find("params", path), path)

    def placement(self, path: Any, shape: Iterable[int], mesh: Mesh | None = None) -> Placement:
        """The placement of a parameter on a mesh (the default mesh if left out)."""
        return self.spec(path, shape, mesh=mesh).placement

    def means(self, path: Any, spec: Spec, dim: int) -> Spec:
        """Where an optimizer keeps the means over one dimension of a parameter that lies as ``spec``: as the other
        dimensions of its state, or divided anew where the plan says Spread."""
        spread = {a: word for a, word in self.find("params", path).items() if isinstance(word, Spread)}
        return means(spec, dim, {**spread, **self.find("state", path)})

    @contextmanager
    def on(self, mesh: Mesh) -> Iterator[Any]:
        """Run the code inside under this plan, with ``mesh`` as the default mesh.

        Raises:
            MeshError: an axis of the plan that the mesh does not have, or no mesh.
        """
        from spmdx.plans.running import Running

        given: Any = mesh
        if not isinstance(given, Mesh):
            sizes = given if isinstance(given, Mapping) else dict.fromkeys(self.axes or ("data",), -1)
            raise MeshError(f"a plan runs on a mesh; got {given!r}.", f"plan.on(sx.make_mesh({sizes!r}))")
        for axis in self.axes:
            if axis not in mesh:
                raise MeshError(
                    f"the plan speaks of the mesh axis {axis!r}; {mesh!r} has none of that name.",
                    f'sx.make_mesh({{..., "{axis}": 1}})',
                )
        running = Running(self, mesh)
        with context.use(plan=running, mesh=mesh):
            yield running

    def estimate(self, step: Any, params: Any, *args: Any, mesh: Mapping[str, int], dtype: Any = np.float32) -> Any:
        """What ``step(params, *args)`` would move and hold on each rank of a mesh of these sizes, without running it.

        See :func:`spmdx.plans.estimate.estimate`.
        """
        from spmdx.plans.estimate import estimate

        return estimate(self, step, params, *args, mesh=mesh, dtype=dtype)

    def check(
        self,
        model: Any,
        names: Iterable[tuple[str, str]] | None = None,
        *,
        step: Any = None,
        args: Iterable[Any] = (),
        mesh: Mapping[str, int] | None = None,
    ) -> Any:
        """What each pattern matches in a model, and what of it no pattern matches; ``print`` it.

        Args:
            model: parameters, made or to be made.
            names: what a run came by: ``running.used``, of ``with plan.on(mesh) as running``.
            step: instead of it, a function that uses all names, as ``sx.value_and_grad(loss)``. ``step(model, *args)``
                is run dry: it computes and sends nothing, and takes no memory.
            args: values, or descriptors of values, that are the same on every rank.
            mesh: axis name to size, of the mesh that ``step`` is run on; if left out, the one that the plan is running
                on, or one rank.
        """
        from spmdx.plans.check import check

        if step is not None:
            from spmdx.plans.estimate import run_dry

            running = context.get().plan
            here = running.mesh.shape if running is not None and running.plan is self else None
            sizes = mesh or here or dict.fromkeys(self.axes or ("world",), 1)
            names = [*(names or ()), *run_dry(self, step, model, tuple(args), sizes).used]
        return check(self, model, names)
