"""Each example runs with the commands in its own docstring, and does what it says."""

from __future__ import annotations

import ast
import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import arno as package

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(path.name for path in EXAMPLES.glob("my_*.py"))
DIABETES = ("data=sklearn", "data.name=diabetes", "clients=5")
#: What makes the documented commands short.
SHORT = {"run": ["rounds=2", "clients=5", "--quiet"], "data": ["clients=5"]}


def commands(file: str) -> list[list[str]]:
    """The commands in the docstring of an example, without those that read a run."""
    text = ast.get_docstring(ast.parse((EXAMPLES / file).read_text())) or ""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    found = [shlex.split(line, comments=True) for line in lines if line.strip().startswith("arno ")]
    return [words[1:] for words in found if "RUN" not in words]


@pytest.mark.parametrize("file", FILES)
def test_the_commands_of_an_example_run(file, arno):
    found = commands(file)
    assert found, f"{file} documents no command"
    for words in found:
        assert f"examples/{file}:" in " ".join(words)
        if words[0] != "compare":  # one of them, tested below
            assert arno(*words, *SHORT[words[0]])


def test_contributing_shows_every_example():
    page = (EXAMPLES.parent / "CONTRIBUTING.md").read_text()
    table = [line for line in page.splitlines() if line.startswith("|")]
    for file in FILES:
        assert any(f"examples/{file}" in row for row in table), f"{file} is in no row of the table"
    for target in re.findall(r"`((?:tests|src)/[^`]*\.py)`", "\n".join(table)):
        assert "NAME" in target or (EXAMPLES.parent / target).is_file(), target


def test_my_method_shortens_large_updates():
    words = ("method=custom", "method.target=examples/my_method.py:factory", "engine=serial", "clients=6")
    short = package.run(*words, "method.strength=0.5", rounds=2, out="short")
    plain = package.run("engine=serial", "clients=6", rounds=2, out="plain")
    assert short.history["test_loss"][1] == plain.history["test_loss"][1], "the first round has no limit yet"
    start = plain.problem.init(0)
    assert (short.final - start).norm() < (plain.final - start).norm()


def test_my_personal_layers_stay_with_the_clients():
    words = ("method=custom", "method.target=examples/my_personal_layers.py:factory", "method.layers=hidden.*")
    run = package.run(*words, "data.client_test=0.2", "engine=serial", "clients=4", rounds=2, out="kept")
    start, mask = run.problem.init(0), run.problem.layout.mask("hidden.*")
    assert torch.equal(run.final[mask], start[mask]), "the server never sees them"
    assert not torch.equal(run.final[~mask], start[~mask])
    assert "personal_accuracy" in run.history


def test_my_net_takes_part_in_every_engine():
    words = ("model=custom", "model.target=examples/my_net.py:Net", "clients=4")
    runs = [package.run(*words, f"engine={engine}", rounds=2, out=engine) for engine in ("serial", "processes")]
    assert torch.equal(runs[0].final, runs[1].final)
    assert runs[0].model().head.out_features == 10


def test_my_task_estimates_a_quantile(arno, rows):
    from sklearn.metrics import mean_pinball_loss

    words = (*DIABETES, "task=custom", "task.target=examples/my_task.py:factory", "model=softmax", "local.lr=0.1")
    means = []
    for q in (0.1, 0.9):
        arno("run", *words, f"task.quantile={q}", "rounds=60", f"out=q{q}", "--quiet")
        run = package.RunResult(f"q{q}")
        x, y = run.problem.held_out["test"]
        task = run.problem.task
        with torch.no_grad():
            estimate = task.mean + task.std * run.model("final")(run.problem.inputs(x))
        last = rows(f"q{q}")[-1]
        assert last["test_pinball"] == pytest.approx(mean_pinball_loss(y, estimate, alpha=q), rel=1e-4)
        assert last["test_coverage_error"] == pytest.approx(abs(float((y <= estimate).double().mean()) - q), abs=1e-6)
        assert last["test_coverage_error"] < 0.1
        assert run.folder.manifest()["best_round"] == run.history["val_pinball"].idxmin()
        means.append(float(estimate.mean()))
    assert means[0] + 50 < means[1]


def test_my_task_on_every_engine(arno):
    words = (*DIABETES, "task=custom", "task.target=examples/my_task.py:factory", "task.quantile=0.9", "rounds=3")
    vectors = {}
    for engine in ("serial", "processes", "batched", "auto"):
        arno("run", *words, f"engine={engine}", f"out={engine}", "--quiet")
        vectors[engine] = load_file(f"{engine}/final.safetensors")["w"]
    assert torch.equal(vectors["serial"], vectors["processes"])
    for engine in ("batched", "auto"):
        torch.testing.assert_close(vectors[engine], vectors["serial"], rtol=1e-4, atol=1e-5)


def test_my_task_with_a_method_and_its_report(arno, rows):
    words = (*DIABETES, "task=custom", "task.target=examples/my_task.py:factory", "rounds=3", "local.batch_size=8")
    arno("run", *words, "method=lorenzo", "out=it", "--quiet")
    assert [row["balanced_pinball"] for row in rows("it")] == [row["val_pinball"] for row in rows("it")]
    arno("report", "it")
    assert "pinball loss" in Path("it/report.html").read_text()


def test_my_metric_is_recorded_and_selects_the_best_model(rows):
    from sklearn.metrics import balanced_accuracy_score

    run = package.run(
        "task=custom", "task.target=examples/my_metric.py:factory", "clients=5", "model=softmax", rounds=5, out="it"
    )
    x, y = run.problem.held_out["test"]
    with torch.no_grad():
        predicted = run.model("final")(run.problem.inputs(x)).argmax(1)
    last = rows("it")[-1]
    assert last["test_balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, predicted))
    assert last["test_accuracy"] == pytest.approx(float((predicted == y).double().mean()))
    assert run.folder.manifest()["best_round"] == run.history["val_balanced_accuracy"].idxmax()
    assert run.metrics[0].name == "test_balanced_accuracy", "the first one is compared by default"


def test_my_metric_is_what_a_comparison_compares(arno):
    (words,) = (words for words in commands("my_metric.py") if "compare" in words)
    said = arno(*words, "rounds=1", "clients=4", "out=it")
    assert "test balanced accuracy" in said
    with Path("it/table.csv").open() as file:
        table = list(csv.DictReader(file))
    finals = [
        json.loads(Path(f"it/method={row['name']}+seed={seed}/metrics.jsonl").read_text())["test_balanced_accuracy"]
        for row in table[:1]
        for seed in range(3)
    ]
    assert float(table[0]["final"]) == pytest.approx(np.mean(finals))


def test_my_data_is_learned():
    words = ("data=custom", "data.target=examples/my_data.py:factory", "clients=5", "local.lr=0.2")
    run = package.run(*words, rounds=15, out="it")
    assert run.history["test_accuracy"].iloc[-1] > 0.95
    assert run.counts.shape == (5, 2)
    noisy = package.run(*words, "data.noise=1.0", rounds=15, seed=3, out="noisy")
    assert noisy.history["test_accuracy"].iloc[-1] < 0.9
    again = package.run(*words, rounds=1, seed=3, out="again")
    assert again.problem.fingerprint() == run.problem.fingerprint(), "the data do not depend on the seed"


def test_my_problem_finds_the_place_and_works_with_methods():
    words = ("problem=custom", "problem.target=examples/my_problem.py:factory", "problem.spread=3", "clients=6")
    words += ("local.lr=0.5", "local.batch_size=20", "local.epochs=5")
    found = [package.run(*words, f"method={method}", rounds=200, out=method) for method in ("fedavg", "scaffold")]
    problem = found[0].problem
    w = found[0].final.double().clone().requires_grad_()
    search = torch.optim.LBFGS([w], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        value = problem.distances(w, problem.points.double()).mean()
        value.backward()
        return value

    search.step(loss)
    off = [float((run.final.double() - w.detach()).norm()) for run in found]
    assert off[1] < 1e-3, "SCAFFOLD reaches the place"
    assert off[0] > 10 * off[1], "FedAvg stays away from it"


@pytest.mark.parametrize("data", [("data=digits",), DIABETES])
def test_my_partition_gives_neighbouring_strata(data, arno):
    words = ("partition=custom", "partition.target=examples/my_partition.py:factory", "clients=5")
    skew = []
    for shuffled in (0, 1):
        said = arno("data", "show", *data, *words, f"partition.shuffled={shuffled}", "--out", "it.png")
        skew.append(float(re.search(r"heterogeneity\s*│ ([\d.]+)", said)[1]))
    assert skew[0] > 0.75
    assert skew[1] < 0.25
    run = package.run(*data, *words, "model=softmax", rounds=1, out="it")
    sizes = run.problem.clients.sizes
    assert int(sizes.max() - sizes.min()) <= 1


def test_my_engine_computes_as_serial_and_writes_its_log():
    words = ("clients=6", "participation=0.7", "method=scaffold")
    mine = package.run(*words, "engine=custom", "engine.target=examples/my_engine.py:factory", rounds=3, out="mine")
    serial = package.run(*words, "engine=serial", rounds=3, out="serial")
    assert torch.equal(mine.final, serial.final)
    with Path("mine/logs/slowest.csv").open() as file:
        log = list(csv.DictReader(file))
    assert [int(row["round"]) for row in log] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    seconds = mine.clients.set_index(["round", "client"])["seconds"]
    for t in (1, 2, 3):
        slow = seconds[t].sort_values(ascending=False)
        assert {int(row["client"]) for row in log if row["round"] == str(t)} == set(slow.index[:3])
    assert mine.folder.manifest()["engine"]["name"] == "timed"


def test_my_panel_is_in_the_folder_the_log_and_the_report(arno, rows):
    said = arno("run", "method=custom", "method.target=examples/my_panel.py:factory", "rounds=3", "clients=4", "out=it")
    run = package.RunResult("it")
    distance = float((run.final - run.problem.init(0)).norm())
    assert rows("it")[-1]["distance"] == pytest.approx(distance, rel=1e-5)
    assert f"the model has moved by {distance:.3f}; the last step was" in said
    (panel,) = (panel for panel in json.loads(Path("it/panels.json").read_text()) if "Distance" in panel["title"])
    assert [line["name"] for line in panel["lines"]] == ["‖w − w₀‖", "‖v‖"]
    assert panel["lines"][0]["y"] == [row["distance"] for row in rows("it")]
    assert Path("it/distance-from-the-start.png").read_bytes()[:4] == b"\x89PNG"
    arno("report", "it")
    assert "Distance from the start" in Path("it/report.html").read_text()


def test_my_selection_prefers_clients_that_have_waited():
    words = ("select=custom", "select.target=examples/my_selection.py:factory", "clients=10", "engine=serial")
    waited = package.run(*words, "select.power=20", participation=0.2, rounds=5, out="waited")
    taken = waited.clients.groupby("client").size()
    assert list(taken.index) == list(range(10))
    assert set(taken) == {1}, "with a large power the clients take part in turn"
