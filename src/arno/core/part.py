"""A part is one orthogonal ingredient of a method; it overrides only what its paper changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from .table import ClientTable
from .work import Result, Vec, Work

if TYPE_CHECKING:
    from ..panels.panel import Panel
    from ..runs.run import RunResult
    from .federation import Federation

#: Client ids: everybody is a `range`, so that a million clients cost nothing until some are chosen.
Ids = Sequence[int] | Tensor


class Part:
    """The five moments of a round in which a method may act. All of them do nothing by default, which is FedAvg.

    A part is a dataclass: its fields are its settings. Whatever it sets in `start` is its state: tensors, client
    tables and plain numbers, saved in every checkpoint. Names that begin with an underscore are derived from the
    settings and not saved. `roles` are tasks that only one part of a method can have.
    """

    roles: ClassVar[frozenset[str]] = frozenset()

    def start(self, fed: Federation) -> None:
        """Before the first round: make the state, look at the other parts, refuse what cannot work."""

    def select(self, ids: Ids, t: int) -> Ids:
        """Choose among the clients still in question; an id may come back more than once."""
        return ids

    def begin(self, t: int) -> None:
        """The cohort is known and nothing has been sent yet."""

    def send(self, work: Work) -> Work:
        """Change what a block of clients is asked to do."""
        return work

    def receive(self, work: Work, out: Result, v: Vec) -> Vec:
        """A block has come back and `v` is its share of the update; blocks arrive in cohort order.

        State that `send` reads for later blocks must not change here: collect, and change it in `finish`.
        """
        return v

    def finish(self, t: int, v: Vec) -> Vec:
        """The whole cohort is in: `v` becomes the direction of the server's step."""
        return v

    def record(self) -> dict[str, float]:
        """Numbers worth a line in this round's record."""
        return {}

    def lines(self) -> list[str]:
        """What a reader should be told after this round."""
        return []

    def done(self) -> str:
        """Why the run should end before its last round; empty to go on."""
        return ""

    def close(self, fed: Federation) -> dict[str, float]:
        """After the last round: named scores for the final report."""
        return {}

    def draw(self, run: Path) -> None:
        """After the last round: pictures of one's own, from the records in the run's folder."""

    def panels(self, run: RunResult) -> list[Panel]:
        """What `arno report` shows of this part: pictures as data, from a run's records. `start` was not called."""
        return []

    def state(self) -> dict[str, Any]:
        """Everything that `start` set and that is not derived."""
        settings = {f.name for f in fields(self)} if is_dataclass(self) else set[str]()
        state = {k: v for k, v in vars(self).items() if k not in settings and not k.startswith("_")}
        for name, value in state.items():
            if not isinstance(value, Tensor | ClientTable | int | float | str | None):
                raise TypeError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__}: state is tensors, client tables "
                    "and plain numbers; name it with a leading underscore if it is derived from the settings"
                )
        return state
