"""What a person sees."""

from __future__ import annotations

import io
import json

import pytest
from rich.cells import cell_len

from arno.pictures.figures import draw_bands, draw_curves
from arno.runs.progress import Bar, Lines, Quiet, choose, scores

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
    bar.start("a run", 1000, 0)
    bar.round(ROW | {"round": 100})
    bar.watch("client 3 of 10")
    bar.round(ROW | {"round": 1000})
    bar.say("a word")
    bar.stop()
    from rich.text import Text

    lines = Text.from_ansi(screen.getvalue().replace("\r", "\n")).plain.splitlines()
    last = [line for line in lines if "1000/1000" in line][-1]
    assert cell_len(last) <= width
    for word in ("round", "acc 0.9100", "loss 0.3000", "clients/s", "left", "━"):
        assert word in last
    assert ("val f1 0.8900" in last) == (width == 200)
    assert "…" not in last
    assert "a word" in screen.getvalue()


def test_lines_elsewhere_and_nothing_when_quiet(capsys):
    assert isinstance(choose(), Lines)
    quiet = choose(quiet=True)
    assert type(quiet) is Quiet
    for shown in (quiet, Lines()):
        shown.start("a run", 6, 0)
        shown.round(ROW)
        shown.round({"round": 4, "clients": 10, "train_loss": 1.0})
        shown.watch("within")
        shown.say("a word")
        shown.stop()
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "a run"
    assert second.startswith("round 3/6  acc 0.9100  f1 0.9000  val f1 0.8900  loss 0.3000  train loss 1.2e+33  ")
    assert third == "a word"
    assert scores({"test_accuracy": 0.5, "train_loss": 1.0}, short=True) == "acc 0.5000"


def run(folder, rows):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def png(path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_pictures_of_one_round_of_uneven_runs_and_of_none(tmp_path):
    rows = [ROW | {"round": t, "train_loss": 1 / t} for t in range(1, 6)]
    one, short, bare = (run(tmp_path / n, r) for n, r in (("a", rows), ("b", rows[:3]), ("c", [{"round": 1}])))
    draw_curves([one], tmp_path / "a.png")
    draw_curves([bare], tmp_path / "b.png")
    draw_bands({"even": [one, one], "uneven": [one, short], "bare": [bare]}, tmp_path / "c.png")
    for name in "abc":
        width, height = png(tmp_path / f"{name}.png")
        assert width > 800 < 2 * height
