"""A user's table on the command line: runs, listings, comparisons and reports name its clients."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import arno as package

SIZES = {"bern": 40, "rome": 60, "oslo": 25}
TABLE = ("data=table", "data.path=heart.csv", "data.label=sick", "data.client=hospital")


@pytest.fixture(autouse=True)
def heart() -> pd.DataFrame:
    random = np.random.default_rng(0)
    n = sum(SIZES.values())
    table = pd.DataFrame({"age": random.normal(50, 10, n), "sick": random.integers(0, 2, n)})
    table["hospital"] = np.repeat(list(SIZES), list(SIZES.values()))
    table["sick"] |= (table["age"] > 60).astype(int)
    table.to_csv("heart.csv", index=False)
    return table


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_a_run_names_the_clients_of_the_table(arno, heart):
    said = arno("run", *TABLE, "rounds=2", "out=it")
    assert "heart by natural, mlp: 3 clients" in said.out
    assert "clients: 3, with rows: bern 40, oslo 25, rome 60" in " ".join(said.out.split())
    run = package.RunResult(said.folder)
    kept = manifest(said.folder)
    assert (kept["clients"], kept["client_count"]) == (["bern", "oslo", "rome"], 3)
    assert "label sick: 2 classes: 0, 1 (data.numbers=true if this is wrong)" in kept["data_notes"]
    assert dict(zip(run.clients["client"], run.clients["name"], strict=True)) == {0: "bern", 1: "oslo", 2: "rome"}
    held = sum(len(y) for _, y in run.problem.held_out.values())
    assert run.counts.sum() == len(heart) - held
    assert kept["command"].endswith("partition=natural rounds=2 out=it")


def test_a_run_on_a_table_continues_to_the_bit(arno):
    arno("run", *TABLE, "rounds=4", "out=whole")
    arno("run", *TABLE, "rounds=2", "out=part")
    arno("resume", "part", "rounds=4")
    assert package.RunResult(Path("part")).final.equal(package.RunResult(Path("whole")).final)


def test_a_changed_table_is_not_continued(arno, heart):
    arno("run", *TABLE, "rounds=2", "out=it")
    heart.assign(hospital=heart["hospital"].to_numpy()[::-1]).to_csv("heart.csv", index=False)
    assert "they have changed since the run began" in arno("resume", "it", "rounds=4").error


def test_data_show_names_the_clients(arno, pictures):
    said = arno("data", "show", *TABLE)
    lines = [line.split() for line in said.out.replace("│", " ").splitlines()]
    counts = {words[0]: list(map(int, words[1:])) for words in lines if words and words[0] in SIZES}
    assert set(counts) == set(SIZES)
    assert all(total == sum(each) for total, *each in counts.values())
    assert "rows: 125 of heart.csv" in said.out


def test_a_comparison_and_its_report_name_the_clients(arno):
    words = ("method=fedavg,scaffold", "participation=0.6", *TABLE, "data.features=[age]", "seed=0,1", "rounds=2")
    arno("compare", *words, "out=both")
    assert arno("compare", *words, "out=both").status == 0  # nothing is computed again
    assert arno("report", "both").status == 0
    text = Path("both/report.html").read_text()
    for name in SIZES:
        assert name in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("data.label=sik",), "data.label = sik: the columns are age, sick, hospital; did you mean sick?"),
        (("clients=20",), "clients = 20: the data name 3 clients (bern, oslo, rome); leave out clients="),
        (("data.path=absent.csv",), "data.path = absent.csv: cannot be read (No such file or directory)"),
        (("partition=file",), "partition=file: the file is not named"),
    ],
)
def test_mistakes_are_one_line(arno, words, said):
    assert said in arno("run", *TABLE, *words, "rounds=1").error


def test_a_regression_with_clients_from_a_column(arno, heart):
    heart.assign(sick=heart["age"] * 0.5 + 0.25).to_csv("heart.csv", index=False)
    said = arno("run", *TABLE, "rounds=2", "out=it")
    assert "label sick: numbers, a regression" in said.out
    assert "test_rmse" in package.RunResult(said.folder).history


def made_by_a_law(sizes: tuple[int, ...]) -> pd.DataFrame:
    """A linear law with noise; the sites differ in size, in their inputs and in an offset that no column shows."""
    random, tables = np.random.default_rng(0), []
    for site, n in enumerate(sizes):
        x = random.normal(size=(n, 3)) * [1, 4, 20] + random.normal(size=3) * [1, 5, 30]
        y = x @ [2.0, -1.0, 0.1] + 3 + 0.8 * site + 0.5 * random.normal(size=n)
        tables.append(pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y, site=f"site {site}"))
    return pd.concat(tables)


def test_scaffold_reaches_the_pooled_least_squares_of_unequal_clients():
    """In the units of the table; FedAvg with the same settings stays away from it."""
    made_by_a_law((200, 70, 25, 9)).to_csv("law.csv", index=False)
    words = ("data=table", "data.path=law.csv", "data.label=y", "data.client=site", "model=softmax", "dtype=float64")
    words += ("local.batch_size=200", "local.epochs=5", "local.lr=0.1")
    worst = {}
    for method in ("scaffold", "fedavg"):
        run = package.run(*words, f"method={method}", rounds=200, out=method)
        problem, task = run.problem, run.problem.task
        slope = run.final[:3] * task.std / torch.tensor(problem.transform.std, dtype=torch.float64)
        x = torch.cat([problem.x.double(), torch.ones(len(problem.x), 1)], 1)
        pooled = torch.linalg.lstsq(x, problem.y.double()).solution[:3, 0]
        worst[method] = float((slope - pooled).abs().max())
    assert worst["scaffold"] < 1e-8
    assert worst["fedavg"] > 1e-3
