"""Quadratics: the optimum, refusals, and the fast simulation against the general path, round by round."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import arno
from arno import ArnoError, Federation, Local
from arno.client_selection.schedule import Fixed
from arno.config import build
from arno.config.settings import compose, plain
from arno.conform import PACKAGED, replay
from arno.methods.scaffold import scaffold
from arno.problems.quadratic import Quadratic
from arno.quadratic import Study, draw, simulate, sweep, too_fast
from arno.runs.quadratic import run as command
from arno.runs.quadratic import studies


@pytest.fixture(params=["numpy", pytest.param("numba", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "numba":
        pytest.importorskip("numba", reason="numba is not installed (the extra `fast`)")
    return str(request.param)


def general(study: Study) -> Federation:
    """The same study on the general path, from its own configuration."""
    return build.federation(plain(compose([], study.config() | {"device": "cpu"})))


@pytest.mark.parametrize("case", sorted(PACKAGED.glob("quadratic_*.npz")), ids=lambda p: p.stem)
def test_conformance(case: Path) -> None:
    assert replay(case).ok


@pytest.mark.parametrize("spd", [False, True])
def test_the_gradient_vanishes_at_the_optimum(spd: bool) -> None:
    q = Quadratic.of(draw(30, 5, 3.0, spd, 4))
    assert q.gradient(q.star).abs().max() < 1e-10
    slow = q.star.clone().requires_grad_()
    (q.p @ q.losses(slow, torch.arange(30))).backward()
    assert slow.grad is not None
    assert slow.grad.abs().max() < 1e-9
    assert q.gradient(q.star + 1).abs().max() > 1
    everybody = torch.arange(30)
    w = torch.randn(5, dtype=torch.float64)
    gap = q.p @ (q.losses(w, everybody) - q.losses(q.star, everybody))
    assert float(gap) == pytest.approx(q.scores(q.total(w, ""))["gap"], rel=1e-9)


def test_losses_are_the_written_formula() -> None:
    for spd in (False, True):
        i = draw(7, 3, 3.0, spd, 1)
        q, w = Quadratic.of(i), np.array([1.0, -2.0, 0.5])
        for k in range(7):
            h = i.h[k] if spd else i.h[k] * np.eye(3)
            written = 0.5 * w @ h @ w - i.e[k] @ w + 0.5 * i.e[k] @ np.linalg.inv(h) @ i.e[k]
            assert float(q.losses(torch.from_numpy(w), torch.tensor([k]))) == pytest.approx(written, rel=1e-9)


@pytest.mark.parametrize("h", [[1.0, 0.0], [1.0, -2.0]])
def test_curvatures_must_be_positive(h: list[float]) -> None:
    with pytest.raises(ArnoError, match="positive definite"):
        Quadratic(torch.tensor(h), torch.ones(2, 3))
    with pytest.raises(ArnoError, match="positive definite"):
        Quadratic(torch.stack([torch.eye(2), torch.diag(torch.tensor(h))]), torch.ones(2, 2))


def test_a_learning_rate_that_diverges_is_warned_about(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not too_fast(0.199, 10.0)
    assert "2/max h" in too_fast(0.2, 10.0)[0]
    result = arno.run("problem=quadratic", "rounds=1", "local.lr=0.5", clients=3, out=str(tmp_path / "run"))
    assert "2/max h" in (result.path / "log.txt").read_text()
    calm = arno.run("problem=quadratic", "rounds=1", "local.lr=0.1", clients=3, out=str(tmp_path / "calm"))
    assert "2/max h" not in (calm.path / "log.txt").read_text()


def test_shares_follow_the_power_law() -> None:
    shares = np.concatenate([draw(200, 1, 3.0, False, s).p for s in range(10)])
    assert abs(shares.mean() * 200 - 1) < 1e-9
    assert np.quantile(shares, 0.1) * 200 == pytest.approx(0.1 ** (1 / 3) / 0.75, rel=0.1)


@pytest.mark.parametrize("spd", [False, True])
def test_forced_cohorts_give_the_general_trajectory(backend: str, spd: bool) -> None:
    study = Study(num_users=12, frac=0.25, epochs=60, lr=0.05, le=3, spd=spd, dim=4)
    cohorts = np.random.default_rng(0).integers(0, 12, (60, 3))  # with repeats
    fast = simulate(study, cohorts=cohorts, backend=backend)  # type: ignore[arg-type]
    fed = general(study)
    fed.parts[0] = Fixed(cohorts.tolist())
    for t in range(60):
        assert np.abs(fed.w.numpy() - fast.path[t]).max() < 1e-10 * np.abs(fast.path[0]).max()
        fed.round()
        scores = fed.engine.report(fed.w)
        assert scores["gap"] == pytest.approx(fast.gap[t], rel=1e-8)
        assert scores["distance"] == pytest.approx(fast.distance[t], rel=1e-8)


@pytest.mark.parametrize(
    ("seltype", "powd"),
    [("rand", None), ("uniform", None), ("roundrobin", None), ("powd", 6), ("powd", 20), ("cpowd", 7), ("rpowd", 9),
     ("adapowd", 20)],
)  # fmt: skip
def test_the_same_streams_give_the_general_trajectory(backend: str, seltype: str, powd: int | None) -> None:
    study = Study(num_users=20, frac=0.15, powd=powd, seltype=seltype, epochs=80, lr=0.02, seed=3)
    fast, fed = simulate(study, backend=backend), general(study)  # type: ignore[arg-type]
    for t in range(80):
        record = fed.round()
        drawn = np.repeat(record.clients["client"], record.clients["count"])
        assert sorted(drawn.tolist()) == sorted(fast.chosen[t].tolist()), t
        assert np.abs(fed.w.numpy() - fast.path[t + 1]).max() < 1e-10 * np.abs(fast.path[0]).max()
        assert record.numbers.get("loss_evaluations", 0) == fast.evaluations[t]


@pytest.mark.slow
@pytest.mark.parametrize(("k", "d"), [(30, 9), (30, 30), (200, 90)])
@pytest.mark.parametrize("seltype", ["powd", "rpowd"])
def test_compiled_and_vectorised_agree(k: int, d: int, seltype: str) -> None:
    pytest.importorskip("numba", reason="numba is not installed (the extra `fast`)")
    study = Study(num_users=k, frac=0.05, powd=d, seltype=seltype, epochs=60, lr=0.02, rho=True, samples=40)
    a, b = simulate(study, backend="numba"), simulate(study, backend="numpy")
    assert (a.chosen == b.chosen).all()
    assert np.allclose(a.path, b.path, rtol=1e-12)
    for x in (a.rho - b.rho, a.rho_star - b.rho_star):  # the same law by different draws
        assert abs(x.mean()) < 4 * x.std() / len(x) ** 0.5 + 1e-9


def test_rho_of_selection_by_share_is_one() -> None:
    """E ρ(S, w) = 1 for draws with probability p; power-of-choice is above it, and more so for a larger d."""
    bars = []
    for seltype, d in (("rand", None), ("powd", 6), ("powd", 30)):
        found = simulate(Study(seltype=seltype, powd=d, epochs=60, rho=True, samples=100), backend="numpy")
        bars.append(float(found.rho.mean()))
    assert bars[0] == pytest.approx(1, abs=0.03)
    assert bars[0] < bars[1] < bars[2]
    assert set(found.skew) == {"rho_bar", "rho_ratio"}
    assert found.skew["rho_ratio"] == pytest.approx(found.rho_star.max() / found.rho.min())


def test_a_sweep_is_its_runs(backend: str) -> None:
    grid = [
        Study(seltype=s, powd=d, epochs=50, seed=i)
        for s, d in (("rand", None), ("powd", 9), ("rpowd", 6))
        for i in (0, 1)
    ]
    for study, found in zip(grid, sweep(grid, backend=backend), strict=True):  # type: ignore[arg-type]
        alone = simulate(study, backend=backend)  # type: ignore[arg-type]
        assert found.study == study
        assert (found.chosen == alone.chosen).all()
        assert np.allclose(found.path, alone.path, rtol=1e-12)


def test_divergence_is_an_error(backend: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(ArnoError, match="diverged"):
        simulate(Study(lr=10.0, epochs=500), backend=backend)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [("seltype=rnd", "rand"), ("num_user=3", "num_users"), ("epochs=0", "at least 1"), ("lr=-1", "positive"),
     ("powd=50 seltype=powd", "powd = 50: it must be from 3"), ("dim=two", "type int"), ("frac=2", "at most 1"),
     ("until=0 seltype=adapowd", "above 0")],
)  # fmt: skip
def test_bad_settings(text: str, message: str) -> None:
    with pytest.raises(ArnoError, match=message):
        studies(text.split())


def test_the_defaults_are_the_seeds() -> None:
    ((study,), _) = studies([])
    assert (study.num_users, study.frac, study.alpha, study.lr, study.le, study.epochs, study.dim) == (
        30, 0.1, 3.0, 2e-5, 2, 15000, 5,
    )  # fmt: skip
    assert study.m == 3


@pytest.mark.slow
def test_a_simulation_is_a_run_that_the_general_path_repeats(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    command(["seltype=powd", "powd=9", "epochs=40", "lr=0.01", f"out={tmp_path / 'fast'}"])
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == str(tmp_path / "fast")
    fast = arno.RunResult(tmp_path / "fast")
    config = fast.config | {"out": str(tmp_path / "general")}
    from arno.runs.progress import Quiet
    from arno.runs.run import execute

    slow = execute(plain(compose([], config)), Quiet())
    assert fast.history["gap"].tolist() == pytest.approx(slow.history["gap"].tolist(), rel=1e-9)
    assert torch.allclose(fast.final, slow.final)
    assert fast.folder.manifest()["data_fingerprint"] == slow.folder.manifest()["data_fingerprint"]
    assert sum(fast.folder.manifest()["picks"]) == 120
    assert (slow.path / "curves.png").stat().st_size > 5000
    picks = fast.clients.groupby("round")["client"].apply(sorted).tolist()
    assert picks == slow.clients.groupby("round")["client"].apply(sorted).tolist()


@pytest.mark.slow
def test_a_sweep_writes_table_and_picture(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    command(["seltype=rand,powd", "powd=6,30", "seed=0..2", "epochs=100", f"out={tmp_path / 'sweep'}"])
    out = capsys.readouterr().out
    assert "9 simulations" in out
    assert "powd d=30" in out
    with np.load(tmp_path / "sweep" / "sweep.npz") as arrays:
        assert arrays["powd d=6 gap"].shape == (3, 100)
    assert (tmp_path / "sweep" / "sweep.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "scaffold", "fedvarp", "cluster_fedvarp", "fedavgm", "fedadam", "fednova", "feddyn"]
)
def test_methods_run_on_quadratics(method: str, tmp_path) -> None:
    result = arno.run(
        "problem=quadratic", "rounds=30", "clients=10", "participation=0.5", "local.lr=0.02", method=method,
        out=str(tmp_path / method),
    )  # fmt: skip
    gaps = result.history["gap"]
    assert gaps.iloc[-1] < gaps.iloc[0]
    assert json.loads((result.path / "manifest.json").read_text())["status"] == "done"


def test_scaffold_reaches_the_optimum_where_fedavg_stalls() -> None:
    instance, ends = draw(4, 3, 3.0, False, 0), {}
    for name, parts in (("fedavg", []), ("scaffold", scaffold())):
        problem = Quadratic(torch.from_numpy(instance.h), torch.from_numpy(instance.e))
        fed = Federation(problem, parts, local=Local(epochs=8, lr=0.02), weighting="uniform")
        for _ in range(150):
            fed.round()
        ends[name] = fed.engine.report(fed.w)["distance"]
    assert ends["scaffold"] < 1e-4
    assert ends["fedavg"] > 0.1


def test_replace_keeps_a_study_valid() -> None:
    with pytest.raises(ArnoError):
        replace(Study(), powd=1, seltype="powd")
