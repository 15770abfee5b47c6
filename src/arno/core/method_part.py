"""A part is one independent component of a method. A part overrides only the callbacks that its paper changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ..errors import ArnoError
from .table import ClientTable
from .work import Mat, Result, SumResult, Vec, Work

if TYPE_CHECKING:
    from .engine import Engine
    from .federation import Federation

#: Client ids. All clients are a `range`, so that a million clients need no memory until some of them are selected.
Ids = Sequence[int] | Tensor

#: The roles of parts, in the order in which parts act. A method can have one part in each role, except `loss`.
ROLES = {
    "select": "selects the clients of a round",
    "order": "sets the order in which clients train",
    "window": "chooses the sub-model",
    "proximal": "pulls clients towards the model that they received",
    "criterion": "replaces the loss of the task",
    "loss": "adds a term to the clients' loss",
    "step": "changes the local step",
    "control": "corrects the clients' gradients with control vectors",
    "mean": "decides how the clients' updates are averaged",
    "server": "is the optimiser of the server",
    "rate": "scales the server's step",
    "personal": "gives every client a personal model",
}
#: Roles that several parts of one method may have.
SHARED = frozenset({"loss"})


#: Methods of a part in release 0.1, and what replaces them.
RENAMED = {
    "done": "called `stop`",
    "close": "called `final` and takes the last model",
    "lines": "a function outside the part, registered with `arno.methods.panels.messages`",
    "panels": "a function outside the part, registered with `arno.methods.panels.panels`",
    "draw": "a panel: a function outside the part, registered with `arno.methods.panels.panels`",
}


class Part:
    """One component of a method. Its callbacks are the methods (`start`, `select`, `begin`, …) that a round calls.

    By default, all callbacks together are FedAvg. A part is a dataclass: its fields are its settings. The attributes
    that it sets in `start` are its state: tensors, client tables and plain numbers. Every checkpoint contains the
    state. Attributes whose name begins with an underscore are not saved: they follow from the settings, or are used
    only within one round.

    roles: what the part does, as names from `ROLES`. Roles order the parts of a method, so the order in which a user
        lists the parts has no effect.
    first_round: −1 if the method has an additional round 0 before the usual rounds.
    sequential: whether `train` of this part trains one client after another.
    vectors: how many vectors of parameters each client receives and sends in addition to the model.
    drops: whether the method allows that clients whose training failed are dropped (`on_client_error=drop`).
    """

    roles: ClassVar[frozenset[str]] = frozenset()
    first_round: ClassVar[int] = 0
    sequential: ClassVar[bool] = False
    vectors: ClassVar[tuple[int, int]] = (0, 0)
    drops: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, now in RENAMED.items():
            if name in vars(cls):
                raise ArnoError(f"{cls.__name__}.{name}", f"since release 0.2 it is {now}", "see docs/methods.md")

    def start(self, fed: Federation) -> None:
        """Before the first round: create the state, check the other parts, refuse settings that cannot work.

        It may be called again before the first round (with `load=`), and must then create a new state.
        """

    def cohort(self, n: int) -> int:
        """The largest number of different clients, of n, that can take part in a round."""
        return n

    def select(self, ids: Ids, t: int) -> Ids:
        """Choose some of the clients that earlier parts chose. An id may be returned more than once."""
        return ids

    def begin(self, t: int) -> None:
        """Clients have been selected and nothing has been sent: prepare the state of this round."""

    def send(self, work: Work) -> Work:
        """Change the work of a block of clients."""
        return work

    def train(self, engine: Engine, works: Iterable[Work]) -> Iterator[tuple[Work, Result | SumResult]]:
        """Train the cohort; called only for a part with the role `order`. By default, clients train in parallel."""
        return engine.train(works)

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """A block has been trained, and v is Σ p_k Δ_k of this block: return v, changed or not.

        Blocks arrive in the order of the cohort. Change only the rows of this block's clients. Change state that all
        clients share in `finish`, because `send` may read this state for later blocks.
        """
        return v

    def finish(self, t: int, v: Vec) -> Vec:
        """All blocks have been trained, and v is the sum over the blocks: return the direction of the server's step."""
        return v

    def score(self, w: Vec, t: int) -> None:
        """After the server's step to the model w in round t: score this model, if the paper does so."""

    def record(self) -> dict[str, float]:
        """Numbers for the record of this round."""
        return {}

    def stop(self) -> str:
        """The reason to end the run before its last round; empty to continue."""
        return ""

    def best_model(self) -> tuple[Vec, int] | None:
        """The best model so far by the method's own rule, and its round; None if the method has no such rule."""
        return None

    def evaluated(self, w: Vec) -> Vec:
        """The model that is scored in place of w, if the paper scores another model than it trains."""
        return w

    def private(self) -> Tensor | None:
        """The coordinates that clients never send, as booleans [size]; None if clients send all coordinates."""
        return None

    def answered(self, out: Result) -> list[int]:
        """How many single numbers each client of a block sends for this part, in addition to models and vectors."""
        return [0] * len(out.loss)

    def personal(self, clients: Tensor) -> Mat:
        """The models that these clients would use; called only for a part with the role `personal`."""
        raise NotImplementedError

    def final(self, w: Vec) -> dict[str, float]:
        """After the last round: named scores for the final report."""
        return {}

    def state(self) -> dict[str, Any]:
        """All attributes except the settings and those whose name begins with an underscore."""
        settings = {f.name for f in fields(self)} if is_dataclass(self) else set[str]()
        state = {k: v for k, v in vars(self).items() if k not in settings and not k.startswith("_")}
        for name, value in state.items():
            if not isinstance(value, Tensor | ClientTable | int | float | str | None):
                raise ArnoError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__}",
                    "state is tensors, client tables and plain numbers",
                    f"store it as these types, or call it _{name} if it need not be saved",
                )
        return state


#: Callbacks whose effect depends on the order of the parts.
CHAINED = ("select", "send", "receive", "finish")


def in_order(parts: Sequence[Part]) -> list[Part]:
    """The parts of a method in the order of their roles, whatever the order in which they were listed.

    A part with several roles has the place of its first role. Three cases are errors: two parts of the same class, two
    parts with a role that only one part may have, and parts whose order matters and does not follow from their roles.
    """
    ordered = sorted(parts, key=lambda part: (_place(part), type(part).__module__, type(part).__qualname__))
    for one, other in combinations(ordered, 2):
        _refuse_conflict(one, other)
    return ordered


def like(part: Part, callback: str, found: Vec, v: Vec) -> Vec:
    """`found`, which a callback of a part returned; an error if it is not a vector like `v`."""
    if isinstance(found, Tensor) and found.shape == v.shape:
        return found
    what = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else repr(found)
    raise ArnoError(
        f"{type(part).__name__}.{callback} returned {what}",
        f"it must return a vector of {len(v)} numbers",
        "return `v`, changed or unchanged",
    )


def numbers(part: Part) -> dict[str, float]:
    """The numbers that a part records, by name; an error if a value is not a number."""
    found = part.record()
    for name, value in found.items():
        if not isinstance(value, int | float):
            what = f"{type(part).__name__}.record returned {name!r}: {value!r}"
            raise ArnoError(what, "a record holds plain numbers", "use float(…)")
    return found


def _place(part: Part) -> int:
    if isinstance(part.roles, str) or not set(part.roles) <= ROLES.keys():
        what = f"{type(part).__name__}.roles = {part.roles!r}"
        raise ArnoError(
            what, f"roles are a frozenset of names from {', '.join(ROLES)}", "correct them, or leave them out"
        )
    return min((list(ROLES).index(role) for role in part.roles), default=len(ROLES))


def _refuse_conflict(one: Part, other: Part) -> None:
    names = f"{type(one).__name__} with {type(other).__name__}"
    if type(one) is type(other):
        raise ArnoError(names, "a method can hold a part once", "leave one of them out")
    for role in sorted((one.roles & other.roles) - SHARED):
        raise ArnoError(names, f"each {ROLES[role]}, and a method can have one such part", "leave one of them out")
    unnamed = [part for part in (one, other) if not part.roles]
    both = [callback for callback in CHAINED if _acts(one, callback) and _acts(other, callback)]
    if "select" in one.roles | other.roles:  # the part with this role selects first; the other part selects from these
        both = [callback for callback in both if callback != "select"]
    if unnamed and both:
        raise ArnoError(
            names,
            f"both change `{both[0]}`, and {type(unnamed[0]).__name__} has no role that says which of them acts first",
            f"give it roles = frozenset({{…}}) with names from {', '.join(ROLES)}",
        )


def _acts(part: Part, callback: str) -> bool:
    """Whether a part overrides a callback."""
    return getattr(type(part), callback) is not getattr(Part, callback)
