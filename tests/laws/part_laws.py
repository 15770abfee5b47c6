"""The laws of parts together: roles decide who acts first, and what is ambiguous is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import lorenzo_laws
from small import HALF, federate, network, same

from arno.client_selection.schedule import Fixed
from arno.client_selection.uniform import Uniform
from arno.core.federation import Federation
from arno.core.method_part import Part
from arno.core.work import Vec, Work
from arno.errors import ArnoError
from arno.methods.cluster_fedvarp import ClusterVarp
from arno.methods.fedavgm import ServerMomentum
from arno.methods.feddyn import Dyn
from arno.methods.fednova import Nova
from arno.methods.fedopt import ServerAdaptive
from arno.methods.fedprox import Proximal
from arno.methods.fedvarp import Varp
from arno.methods.lorenzo import Lorenzo
from arno.methods.qrmix import QRMix
from arno.methods.scaffold import Scaffold
from arno.methods.server_lr import ServerSchedule
from arno.methods.sub_models import Window

DIRECTIONS: list[Callable[[], Part]] = [
    lambda: Window(0.5),
    Varp,
    lambda: ClusterVarp([0, 1, 0, 1, 2, 2, 1, 0]),
    Nova,
    lambda: Dyn(0.3),
    lambda: QRMix(rank_k=2, oversampling=2),
]
SERVERS: list[Callable[[], Part]] = [lambda: ServerMomentum(0.5), lambda: ServerAdaptive(tau=0.1)]


def rate() -> Part:
    return ServerSchedule("inverse", 0.5)


def reason(act: Callable[[], object]) -> str:
    """Why something is refused."""
    try:
        act()
    except ArnoError as error:
        return str(error)
    raise AssertionError("it is not refused")


def refusal(*parts: Part) -> str:
    """Why a federation refuses these parts."""
    return reason(lambda: Federation(network(), parts))


def with_lorenzo(*parts: Part) -> Federation:
    """A federation that Lorenzo can work on."""
    return Federation(lorenzo_laws.problem(), [*parts], local=lorenzo_laws.LOCAL)


def law_a_later_role_acts_on_what_an_earlier_one_made() -> None:
    """The server's optimiser, then its rate, change the step that the same method takes without them."""
    pairs = [(direction, last) for direction in DIRECTIONS for last in (*SERVERS, rate)]
    for earlier, later in [*pairs, *((server, rate) for server in SERVERS)]:
        both = federate(network(), [later(), Fixed(HALF), earlier()], 0, epochs=1)
        one = federate(network(), [Fixed(HALF), earlier()], 0, epochs=1)
        last = later()
        federate(network(), [last], 0)  # makes its state
        for t in range(3):
            before = one.w = both.w.clone()
            one.round()
            both.round()
            same(both.w, before + last.finish(t, one.w - before), 1e-10)


def law_clients_are_selected_before_they_are_ordered() -> None:
    for parts in ([Uniform(0.5), Lorenzo()], [Lorenzo(), Uniform(0.5)]):
        assert "2 of 4 clients were selected" in reason(with_lorenzo(*parts).round)


def law_the_order_in_which_parts_are_listed_does_not_matter() -> None:
    kinds: Sequence[Any] = (
        lambda: Fixed(HALF), lambda: Window(0.5), lambda: Proximal(0.3), Scaffold, Varp, *SERVERS[:1], rate
    )  # fmt: skip
    forward, backward = ([kind() for kind in order] for order in (kinds, kinds[::-1]))
    same(federate(network(), forward, 4).w, federate(network(), backward, 4).w, 0.0)


def law_a_part_with_several_roles_acts_at_the_first_of_them() -> None:
    class Shift(Part):
        roles: ClassVar[frozenset[str]] = frozenset({"rate", "mean"})

        def finish(self, t: int, v: Vec) -> Vec:
            return v + 1

    class Double(Part):
        roles: ClassVar[frozenset[str]] = frozenset({"server"})

        def finish(self, t: int, v: Vec) -> Vec:
            return 2 * v

    start, plain = network().init(0), federate(network(), [], 1).w
    for parts in ([Shift(), Double()], [Double(), Shift()]):
        same(federate(network(), parts, 1).w, start + 2 * (plain - start + 1))


def law_two_parts_in_one_role_are_refused() -> None:
    for one, other, role in (
        (Varp(), Nova(), "averaged"),
        (Dyn(), Scaffold(), "control vectors"),
        (ServerMomentum(), ServerAdaptive(), "optimiser"),
        (Uniform(0.5), Fixed(HALF), "selects"),
    ):
        why = refusal(one, other)
        assert role in why
        assert "leave one of them out" in why
        assert refusal(other, one) == why
    assert "a method can hold a part once" in refusal(Varp(), Varp())


class Doubled(Part):
    def finish(self, t: int, v: Vec) -> Vec:
        return 2 * v


class Raised(Part):
    def finish(self, t: int, v: Vec) -> Vec:
        return v + 1


class Sent(Part):
    def send(self, work: Work) -> Work:
        return work


def law_parts_without_a_role_that_change_the_same_callback_are_refused() -> None:
    for one, other in ((Doubled(), Raised()), (Doubled(), ServerMomentum()), (Sent(), Proximal())):
        why = refusal(one, other)
        assert "both change `" in why
        assert f"{type(one).__name__} has no role" in why
        assert "give it roles = frozenset({…}) with names from select, order, window" in why
        assert refusal(other, one) == why
    federate(network(), [Doubled(), Sent()], 1)  # they change different callbacks
    federate(network(), [Doubled(), Proximal()], 1)


def law_a_window_with_nothing_to_cut_says_so() -> None:
    fed = federate(network(hidden=()), [Window(0.5)], 1)
    (line,) = [line for line in fed.advice if "has no effect" in line]
    assert line.startswith("method.beta = 0.5 has no effect: this network has no hidden units")
    same(fed.w, federate(network(hidden=()), [], 1).w, 0.0)
    assert not federate(network(), [Window(0.5)], 0).advice
    assert not federate(network(hidden=()), [Window(1.0)], 0).advice


def law_lorenzo_refuses_a_server_schedule() -> None:
    why = reason(lambda: with_lorenzo(Lorenzo(), rate()))
    assert "a mean, not a step" in why
    assert reason(lambda: with_lorenzo(rate(), Lorenzo())) == why
