"""A metric is declared once: its name in records, its label, which direction is better, its range, how to print it.

Everything that shows, selects, ranks, stops or tests a score reads this declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Literal

#: The names of splits for people; the split "" is the objective itself.
SPLITS = {"test": "test", "val": "validation", "balanced": "balanced validation"}


@dataclass(frozen=True)
class Metric:
    """The declaration of one score.

    name: its key in records. label: its name for people. short: the same for a progress bar. better: whether more or
    less is better. low, high: its range. digits: how many are printed after the point. log: whether curves of it are
    drawn on a logarithmic axis. axis: metrics with the same axis are drawn together; its label.

    >>> f1 = Metric("f1", "F1", low=0, high=1)
    >>> f1.on("test").name, f1.on("val").label, f1.sign, f1.show(0.51234)
    ('test_f1', 'validation F1', 1, '0.5123')
    """

    name: str
    label: str
    better: Literal["more", "less"] = "more"
    low: float = -inf
    high: float = inf
    digits: int = 4
    log: bool = False
    short: str = ""
    axis: str = ""

    @property
    def sign(self) -> int:
        """1 where more is better, −1 where less is."""
        return 1 if self.better == "more" else -1

    def on(self, split: str) -> Metric:
        """The same metric as it is recorded for a split of the data."""
        if not split:
            return self
        short = self.short or self.label
        return replace(
            self,
            name=f"{split}_{self.name}",
            label=f"{SPLITS.get(split, split)} {self.label}",
            short=short if split == "test" else f"{split} {short}",
        )

    def show(self, value: float) -> str:
        """A value for people, with an exponent where plain digits would be unreadable.

        >>> Metric("loss", "loss").show(1.5e30), Metric("gap", "gap").show(2.5e-9), Metric("x", "x").show(float("nan"))
        ('1.5e+30', '2.5e-09', 'nan')
        """
        odd = abs(value) >= 1e5 or 0 < abs(value) < 0.5 * 10.0**-self.digits
        return f"{value:.4g}" if odd else f"{value:.{self.digits}f}"

    def to_json(self) -> dict[str, Any]:
        """The declaration as a run's manifest holds it; an end of the range that does not exist is null."""
        return {key: None if value in (inf, -inf) else value for key, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metric:
        """The declaration that `to_json` wrote.

        >>> Metric.from_json(Metric("rmse", "RMSE", "less", low=0).to_json())
        Metric(name='rmse', label='RMSE', better='less', low=0, high=inf, digits=4, log=False, short='', axis='')
        """
        given: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
        return cls(**given)


#: The mean loss of the clients while they train, weighted as their updates; every run records it.
TRAIN_LOSS = Metric("train_loss", "training loss", "less", short="train loss", axis="loss")
