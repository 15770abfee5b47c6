"""What a person sees."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from arno.core.metric import TRAIN_LOSS, Metric
from arno.methods.panels import Chart, HeatMap, Line
from arno.pictures.curves import draw_curves
from arno.pictures.draw import draw, write_panels
from arno.pictures.figure import figure
from arno.runs.progress import Bar, Lines, Quiet, choose, scores

F1 = Metric("f1", "F1", low=0, high=1, short="f1", axis="score")
ACCURACY = Metric("accuracy", "accuracy", low=0, high=1, short="acc", axis="score")
LOSS = Metric("loss", "loss", "less", low=0, axis="loss")
METRICS = (*(metric.on("test") for metric in (ACCURACY, F1, LOSS)), F1.on("val"), TRAIN_LOSS)
ROW = {"round": 3, "clients": 10, "test_accuracy": 0.91, "test_f1": 0.9, "val_f1": 0.89, "test_loss": 0.3}
ROW |= {"train_loss": 1.2e33}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 200])
def test_the_bar_fits_its_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    bar = choose()
    assert isinstance(bar, Bar)
    bar.start("a run", 1000, 0, METRICS)
    bar.round(ROW | {"round": 100})
    bar.watch("client 3 of 10")
    bar.round(ROW | {"round": 1000})
    bar.say("a word")
    bar.stop()
    from rich.text import Text

    lines = Text.from_ansi(screen.getvalue().replace("\r", "\n")).plain.splitlines()
    last = [line for line in lines if "1000/1000" in line][-1]
    assert cell_len(last) <= width
    for word in ("round", "acc 0.9100", "f1 0.9000", "clients/s", "left", "━"):
        assert word in last
    assert ("loss 0.3000" in last) == (width == 200)
    assert ("val f1 0.8900" in last) == (width == 200)
    assert "…" not in last
    assert "a word" in screen.getvalue()


def test_lines_elsewhere_and_nothing_when_quiet(capsys):
    assert isinstance(choose(), Lines)
    quiet = choose(quiet=True)
    assert type(quiet) is Quiet
    for shown in (quiet, Lines()):
        shown.start("a run", 6, 0, METRICS)
        shown.round(ROW)
        shown.round({"round": 4, "clients": 10, "train_loss": 1.0})
        shown.watch("within")
        shown.say("a word")
        shown.stop()
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "a run"
    assert second.startswith("round 3/6  acc 0.9100  f1 0.9000  loss 0.3000  val f1 0.8900  train loss 1.2e+33  ")
    assert third == "a word"
    assert scores({"test_accuracy": 0.5, "train_loss": 1.0}, METRICS) == "acc 0.5000  train loss 1.0000"


def png(path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch):
    """The figures that `draw_curves` makes."""
    made = []

    def record(*arguments):
        made.append(figure(*arguments))
        return made[-1]

    monkeypatch.setattr("arno.pictures.curves.figure", record)
    return made


def test_curves_are_grouped_and_scaled_by_the_declarations(tmp_path, drawn):
    rows = [ROW | {"round": t, "train_loss": 1 / t, "gap": 10.0**-t} for t in range(1, 6)]
    gap = Metric("gap", "F(w) − F(w*)", "less", low=0, log=True)
    draw_curves(rows, (*METRICS, gap), tmp_path / "a.png")
    width, height = png(tmp_path / "a.png")
    assert width > 800 < 2 * height
    score, loss, last = drawn[0][1][0]
    assert [axis.get_ylabel() for axis in (score, loss, last)] == ["score", "loss", "F(w) − F(w*)"]
    assert [len(axis.lines) for axis in (score, loss, last)] == [3, 2, 1]
    assert score.get_ylim() == pytest.approx((0, 1.02))
    assert [axis.get_yscale() for axis in (score, loss, last)] == ["linear", "linear", "log"]


def test_a_run_that_recorded_no_score_has_an_empty_picture(tmp_path):
    draw_curves([{"round": 1}], METRICS, tmp_path / "b.png")
    assert png(tmp_path / "b.png")


def test_the_axis_of_a_chart_ends_where_its_range_ends():
    line = Line("y", [1, 2], [0.05, 0.95], [-0.1, 0.8], [0.2, 1.1])

    def limits(**more):
        return draw(Chart("", "", [line], **more)).axes[0].get_ylim()

    low, high = limits(y="test F1")
    assert low < -0.1
    assert high > 1.1
    assert limits(low=0, high=1) == (0, 1)
    assert limits(low=0) == (0, high)
    assert limits(low=5) == (low, high), "a range without the data does not turn the axis round"
    share = Chart.of(Metric("f1", "F1", low=0, high=1), "", "", [line])
    assert draw(share).axes[0].get_ylim() == (0, 1)


def test_a_logarithmic_axis_is_declared_and_needs_positive_values():
    def scale(y, low=(), log=True):
        return draw(Chart("", "", [Line("y", [1, 2], y, low, low)], log=log)).axes[0].get_yscale()

    assert scale([1.0, 0.01]) == "log"
    assert scale([1.0, 0.01], log=False) == "linear"
    assert scale([1.0, 0.0]) == "linear"
    assert scale([1.0, 0.01], low=[0.5, -0.5]) == "log", "the edge of a band may be below zero"


def test_a_line_below_others_is_broader():
    lines = [Line(name, [1, 2], y) for name, y in (("a", [1.0, 2.0]), ("b", [1.0, 2.0001]), ("c", [1.0, 3.0]))]
    widths = [line.get_linewidth() for line in draw(Chart("", "", lines)).axes[0].lines]
    assert widths[0] > widths[1] == widths[2]


def test_ranks_are_read_after_many_rounds():
    n = 65
    heat = HeatMap("Ranks", "", [list(range(n))], ["a"], list(map(str, range(n))), marks=[list(map(str, range(n)))])
    texts = draw(heat).axes[0].texts
    assert [text.get_text() for text in texts][-2:] == ["61", "64"]
    assert (texts[0].get_color(), texts[-1].get_color()) == ("black", "white")


def test_panels_without_data_are_not_written(tmp_path):
    heat = HeatMap("Held", "", [[1, 2]], ["a"], ["b", "c"], marks=[["x", "y"]])
    empty = HeatMap("Nothing", "", [[0, None]], ["a"], ["b", "c"], marks=[["", ""]], root=True)
    panels = [Chart("Norms: all", "", [Line("y", [1], [0.5])]), Chart("None", "", [Line("y", [], [])]), heat, empty]
    write_panels(panels, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held.png", "norms-all.png", "nothing.png"]
