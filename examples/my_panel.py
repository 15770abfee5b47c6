"""A panel and a message in one file: how far the model moves, shown beside the part that measures it.

    arno run method=custom method.target=examples/my_panel.py:factory
    arno report RUN    # the panel is a section of the report

`record` returns numbers for the record of every round. `panels` turns the records of a finished run into pictures; the
run writes them into its folder and draws them. `messages` returns lines that the user sees after a round.
"""

from dataclasses import dataclass

import torch

from arno import Federation, Part
from arno.methods.panels import Chart, Panel, Records, curves_of, messages, panels


def factory() -> list[Part]:
    return [Distance()]


@dataclass
class Distance(Part):
    """FedAvg that records ‖w − w₀‖, the distance of the model from its start, and ‖v‖, the length of the step."""

    def start(self, fed: Federation) -> None:
        self.first, self.distance, self.step = fed.w.clone(), 0.0, 0.0
        self._fed = fed

    def finish(self, t: int, v: torch.Tensor) -> torch.Tensor:
        self.step = float(v.norm())
        return v

    def score(self, w: torch.Tensor, t: int) -> None:
        self.distance = float((w - self.first).norm())

    def record(self) -> dict[str, float]:
        return {"distance": self.distance, "step": self.step}


@panels.register
def _(part: Distance, run: Records) -> list[Panel]:
    text = "How far the global model is from its start, and how far it moves in a round."
    lines = curves_of(run.rows, {"distance": "‖w − w₀‖", "step": "‖v‖"})
    return [Chart("Distance from the start", text, lines, y="Euclidean norm")]


@messages.register
def _(part: Distance) -> list[str]:
    if part._fed.t != part._fed.rounds:
        return []
    return [f"the model has moved by {part.distance:.3f}; the last step was {part.step:.3f}"]
