"""A metric is declared once: its name in records, its label, which direction is better, its range, its format.

All code that shows, ranks or tests a score, or that selects or stops by a score, reads this declaration. A new metric
is declared in the file of its task (`tasks/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf, isfinite, isnan, log10
from typing import Any, Literal

#: The words for splits in texts; the split "" is the objective itself.
SPLITS = {"test": "test", "val": "validation", "balanced": "balanced validation"}
#: The percentages of clients at which a statistic of kind `deciles` is recorded.
DECILES = tuple(range(0, 101, 10))
#: The most digits that are printed: a float has no more.
DIGITS = 17


@dataclass(frozen=True)
class Metric:
    """The declaration of one score.

    name: its key in records. label: its name in texts. short: a shorter name for the progress bar. better: whether more
    or less is better. low, high: its range. digits: how many digits are printed after the point. log: whether its
    curves have a logarithmic axis. axis: the label of the axis; metrics with the same label are drawn in one picture.
    split: the split of the data on which it is computed. clients: the statistic over the clients that it is; empty for
    a score of the model.

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
    split: str = ""
    clients: Literal["", "mean", "std", "worst", "deciles"] = ""

    @property
    def sign(self) -> int:
        """1 if more is better, −1 if less is better."""
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
            split=split,
        )

    def on_other(self, split: str) -> str:
        """The name of the same metric on another split; empty if this metric belongs to no split.

        >>> Metric("f1", "F1").on("test").on_other("val"), Metric("gap", "gap").on_other("val")
        ('val_f1', '')
        """
        return f"{split}_{self.name.removeprefix(f'{self.split}_')}" if self.split else ""

    def decile(self, q: int) -> str:
        """The name under which a round records the value that q percent of the clients do not exceed."""
        return f"{self.name}_p{q}"

    def show(self, value: float, scale: float | None = None, sign: str = "") -> str:
        """A value as text.

        It has `digits` digits after the point; numbers from 10 on have fewer, and very large or very small numbers have
        an exponent. A value that is not defined (NaN) is a dash.

        scale: the number that decides the format; the numbers of a table column have the same scale.
        sign: "+" writes the sign of positive numbers, too.

        >>> Metric("loss", "loss").show(1.5e30), Metric("gap", "gap").show(2.5e-9), Metric("x", "x").show(float("nan"))
        ('1.5e+30', '2.5e-09', '–')
        >>> rmse = Metric("rmse", "RMSE", "less")
        >>> rmse.show(54.12345), rmse.show(0.1, scale=54.12345, sign="+"), rmse.show(2.5)
        ('54.123', '+0.100', '2.5000')
        """
        if isnan(value):
            return "–"
        size = abs(value if scale is None else scale)
        if size >= 1e5 or 0 < size < 0.5 * 10.0**-self.digits:
            return f"{value:{sign}.4g}"
        whole = int(log10(size)) if isfinite(size) and size >= 10 else 0
        return f"{value:{sign}.{max(self.digits - whole, 0)}f}"

    def to_json(self) -> dict[str, Any]:
        """The declaration for the manifest of a run; a bound of the range that does not exist is null."""
        return {key: None if value in (inf, -inf) else value for key, value in vars(self).items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metric:
        """The declaration that `to_json` wrote. Anything else raises TypeError.

        >>> Metric.from_json(Metric("rmse", "RMSE", "less", low=0).to_json())
        Metric(name='rmse', label='RMSE', better='less', low=0, high=inf, digits=4, log=False, short='', axis='', \
split='', clients='')
        """
        given: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if values.get(f.name) is not None}
        metric, usual = cls(**given), vars(cls("", ""))
        for name, value in vars(metric).items():
            if not isinstance(value, int | float if isinstance(usual[name], float) else type(usual[name])):
                raise TypeError(f"{name} = {value!r}")
        if metric.better not in ("more", "less"):
            raise TypeError(f"better = {metric.better!r}")
        if not 0 <= metric.digits <= DIGITS:
            raise TypeError(f"digits = {metric.digits!r}")
        return metric


#: The mean loss of the clients while they train, with the weights of their updates. Every run records it.
TRAIN_LOSS = Metric("train_loss", "training loss", "less", short="train loss", axis="loss")


def over_clients(metric: Metric) -> tuple[Metric, ...]:
    """The statistics of a score over the clients, which a round records with `eval.clients=true`.

    The last declaration has no column of its own. It declares the deciles, which are the columns `client_f1_p0` to
    `client_f1_p100`.

    >>> [statistic.name for statistic in over_clients(Metric("f1", "F1"))]
    ['client_f1_mean', 'client_f1_std', 'client_f1_worst_decile', 'client_f1']
    """
    name, label = f"client_{metric.name}", metric.label
    each = replace(metric, name=name, short="", clients="deciles")
    return (
        replace(each, name=f"{name}_mean", label=f"{label}, mean over clients", clients="mean"),
        Metric(f"{name}_std", f"{label}, standard deviation over clients", "less", low=0, clients="std"),
        replace(each, name=f"{name}_worst_decile", label=f"{label} of the worst tenth of clients", clients="worst"),
        each,
    )
