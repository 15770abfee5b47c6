"""`arno compare`: the grid, what is skipped, and what happens when a cell fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arno.experiment import compare
from arno.experiment.compare import cells

GRID = ("method=fedavg,fedprox", "fedprox.mu=1", "clients=5", "rounds=2", "model=softmax")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells run in this process, one after another; what a process of its own adds is tested once."""
    from concurrent.futures import Future

    class Pool:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...
        def shutdown(self, **_: object) -> None: ...

        def submit(self, job, *arguments):
            future = Future()
            try:
                future.set_result(job(*arguments))
            except Exception as error:
                future.set_exception(error)
            return future

    monkeypatch.setattr(compare, "ProcessPoolExecutor", Pool)


def test_the_grid_with_its_table_and_picture_and_the_second_time_nothing_runs(arno):
    said = arno("compare", *GRID, "seed=0..1", "out=grid")
    assert said.status == 0, said
    lines = said.out.splitlines()
    assert lines[-2:] == ["picture: grid/compare.png", "grid"]
    rows = {line.split("│")[1].strip(): line for line in lines if line.startswith("│")}
    assert rows.keys() == {"fedavg", "fedprox"}
    assert "±" in rows["fedprox"]
    assert max(map(len, lines)) <= 80
    assert Path("grid/compare.png").read_bytes()[:4] == b"\x89PNG"
    assert {p.name for p in Path("grid").iterdir() if p.is_dir()} == {
        f"method={m}+seed={s}" for m in ("fedavg", "fedprox") for s in (0, 1)
    }
    accuracies = [
        json.loads(Path(f"grid/method=fedavg+seed={s}/metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"]
        for s in (0, 1)
    ]
    mean, std = sum(accuracies) / 2, abs(accuracies[0] - accuracies[1]) / 2**0.5
    assert f"{mean:.4f} ± {std:.4f}" in rows["fedavg"]

    stamps = {p: p.stat().st_mtime_ns for p in Path("grid").rglob("*.safetensors")}
    again = arno("compare", *GRID, "seed=0..1", "out=grid")
    assert {p: p.stat().st_mtime_ns for p in Path("grid").rglob("*.safetensors")} == stamps
    assert [line for line in again.out.splitlines() if "│" in line] == [line for line in lines if "│" in line]
    assert "done" not in again.out


def test_all_methods_see_the_same_cohorts(arno, here):
    arno("compare", *GRID, "participation=0.4", "seed=3", "out=grid")
    import pyarrow.parquet as pq

    seen = [
        pq.read_table(f"grid/method={m}+seed=3/clients.parquet", columns=["round", "client", "count"])
        for m in ("fedavg", "fedprox")
    ]
    assert seen[0].equals(seen[1])


def test_a_new_cell_is_added_and_an_unfinished_one_goes_on(arno, here):
    arno("compare", *GRID, "seed=0", "out=grid")
    manifest = Path("grid/method=fedavg+seed=0/manifest.json")
    manifest.write_text(manifest.read_text().replace('"done"', '"running"'))
    said = arno("compare", *GRID, "seed=0..1", "out=grid")
    assert said.status == 0
    assert sorted(line.split("  ")[1] for line in said.out.splitlines() if line.endswith("done")) == [
        "fedavg seed=0",
        "fedavg seed=1",
        "fedprox seed=1",
    ]
    assert json.loads(manifest.read_text())["status"] == "done"


def test_a_failed_cell_is_reported_and_the_others_count(arno, here):
    said = arno("compare", *GRID, "partition.alpha=0.5,-1", "seed=0", "out=grid")
    assert said.status == 1
    failed = " ".join(said.out.split())
    assert "failed: fedavg partition.alpha=-1 seed=0: partition.alpha = -1.0: it must be a positive number" in failed
    rows = [line for line in said.out.splitlines() if line.startswith("│")]
    assert len(rows) == 2
    assert all("alpha=0.5" in row for row in rows)


def test_a_bug_in_a_users_method_fails_its_cell_only(arno, here):
    Path("mine.py").write_text("def factory():\n    raise ZeroDivisionError('oh')\n")
    said = arno("compare", *GRID[2:], "method=fedavg,custom", "custom.target=mine.py:factory", "out=grid")
    assert said.status == 1
    assert "failed: custom: ZeroDivisionError: oh" in said.out
    assert "│ fedavg" in said.out


def test_a_lost_process_is_a_failed_cell(arno, here, monkeypatch):
    def die(*_: object) -> str:
        raise RuntimeError("killed")

    monkeypatch.setattr(compare, "_run", die)
    said = arno("compare", *GRID, "out=grid")
    assert said.status == 1
    assert "failed: fedavg: its process ended (killed)" in said.out


def test_ctrl_c_says_how_to_go_on(arno, here, monkeypatch):
    monkeypatch.setattr(compare, "_run", lambda *_: compare.INTERRUPTED)
    said = arno("compare", *GRID, "out=grid")
    assert said.status == 130
    assert "the same command goes on from here" in said.out


def test_a_folder_with_other_settings_is_refused(arno, here):
    arno("compare", *GRID, "out=grid")
    assert "local.lr: 0.05 → 0.1" in arno("compare", *GRID, "local.lr=0.1", "out=grid").error
    assert "rounds: 2 → 3" in arno("compare", *[*GRID, "rounds=3"], "out=grid").error


def test_bad_settings_are_refused_before_anything_runs(arno):
    assert "did you mean 'fedprox'" in arno("compare", "method=fedavg,fedpro", "out=grid").error
    assert "written after its name, as fedprox.mu=0.1" in arno("compare", *GRID, "method.mu=1", "out=grid").error
    assert "unknown key 'scaffold.mu'" in arno("compare", *GRID, "scaffold.mu=1", "out=grid").error
    assert "it must rise" in arno("compare", "seed=4..0").error
    assert not Path("grid").exists()


def test_cells():
    assert [c.seed for c in cells(["seed=0..3"])] == ["0", "1", "2", "3"]
    assert [c.overrides for c in cells(["model.hidden=[8, 8],[16]"])] == [
        ("model.hidden=[8, 8]",),
        ("model.hidden=[16]",),
    ]
    assert len(cells(["local.lr=uniform(0.1, 0.2)"])) == 1
    grid = cells(["method=fedavg,fedprox", "fedprox.mu=0.1,1", "seed=0,1"])
    assert sorted({c.label for c in grid}) == ["fedavg", "fedprox fedprox.mu=0.1", "fedprox fedprox.mu=1"]
    assert len(grid) == 6
    assert len({c.folder for c in grid}) == 6
    assert all("/" not in c.folder for c in cells(["data.root=/a/b,/c/d"]))
