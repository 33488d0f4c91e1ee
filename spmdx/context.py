"""The one context record: who this rank is, and what is switched on around the running code.

Records are never changed in place once code runs under them: a ``with`` block sets a changed copy and puts the old
one back, so thread ranks, and tasks of one thread, never see each other's settings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

from spmdx.errors import ContextError

if TYPE_CHECKING:
    from spmdx.mesh import Mesh


@dataclass(slots=True)
class State:
    """What the code of one rank can see: its world, its default mesh, and the settings in force."""

    world: Any = None  # spmdx.runtime.world.World; None until something asks for it
    rank: int | None = None  # this rank; the simulator sets it while it computes one rank's block
    mesh: Mesh | None = None  # the default mesh of `with use_mesh`
    explicit: bool = False  # inside `with explicit()`: implied moves are errors
    trace: Any = None  # the innermost open trace, a list of the collectives made
    check_keys: bool = False  # inside `with check_keys()`: a draw uses its key up
    used_keys: set[Any] = field(default_factory=set)  # the keys that are used up, where anything checks
    plan: Any = None  # the running plan: where named values, their gradients and the parameters' go
    dry: Any = None  # a run without blocks: spmdx.transforms.shapes.Dry
    batch: tuple[Any, ...] = ()  # the vmaps that are running, from the outermost
    saving: Any = None  # what a rematerialised function is to save: sees every operation that is recorded
    draws: Any = None  # the generators drawn from, and their states before, of a function that will run again
    depth: int = 0  # gradients being taken around this code: operations are recorded while it is above 0


_fields = attrgetter(*(f.name for f in fields(State)))  # replace() of dataclasses takes thrice as long
variable: ContextVar[State] = ContextVar("spmdx", default=State())
get = variable.get
_find_world: list[Callable[[], Any]] = []


def provide_world(factory: Callable[[], Any]) -> None:
    """Name the function that makes the process's world when something first asks for it (the runtime does)."""
    _find_world[:] = [factory]


_forgetful: list[Callable[[], None]] = []
remembering = RLock()  # held while a call is remembered for every thread rank, and while all are forgotten


def on_forget(action: Callable[[], None]) -> None:
    """Name what clears the calls that are remembered in this process (the registry does)."""
    _forgetful.append(action)


def forget_calls() -> None:
    """Forget remembered calls: they took for granted that every rank of this process has a block."""
    for action in _forgetful:
        action()


def world() -> Any:
    """The world of the running rank, made at first use."""
    state = variable.get()
    if state.world is None:
        made = _find_world[0]()
        state.world, state.rank = made, made.rank
    return state.world


def rank() -> int:
    """This rank's number in its world."""
    return int(world().rank) if (here := variable.get().rank) is None else here


class use:  # noqa: N801  # read as a verb
    """Run the block of a ``with`` under a copy of the record with some fields changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __enter__(self) -> State:
        self.before = variable.get()
        self.state = state = State(*_fields(self.before))
        for name, value in self.changes.items():
            setattr(state, name, value)
        variable.set(state)
        return state

    def __exit__(self, *_: object) -> None:
        if variable.get() is not self.state:  # a block that began inside has not ended, or that is another thread's
            for name, value in zip(State.__slots__, _fields(self.before)):
                setattr(self.state, name, value)  # which the one inside finds when it ends
            raise ContextError(
                f"a `with` ({', '.join(self.changes)}) ends in a generator before one that began later, or in another "
                "thread.",
                "`with` around the loop over the generator; or close first the one begun last",
            )
        variable.set(self.before)


def enter(state: State) -> None:
    """Make ``state`` the record of the calling thread for good: how a thread rank begins."""
    variable.set(state)
