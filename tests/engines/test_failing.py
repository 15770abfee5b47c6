"""Clients whose code fails: an error with the user's own lines, tried again, or left out of the round.

Attacks: "user's own frames are lost when a client raises in processes", "SystemExit in a client".
"""

import faulthandler
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from training import parts, steady, train

import arno
from arno import cli
from arno.core import user_code_trial
from arno.core.federation import Federation, Local
from arno.core.method_part import Part
from arno.core.serial import Serial
from arno.core.table import ClientTable
from arno.engines.processes import processes
from arno.errors import ArnoError, ClientError
from arno.methods import methods
from arno.runs.result import RunResult

KINDS = {
    "exception": "raise ValueError('bad sample')",
    "SystemExit": "sys.exit(3)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "exception that cannot be pickled": "raise type('Odd', (Exception,), {})('bad sample')",
}

MODEL = """
import os, sys
from torch import nn, sin

class Net(nn.Module):
    def __init__(self, shape, outputs, how="", folder=""):
        super().__init__()
        self.linear, self.how, self.folder = nn.Linear(64, outputs), how, folder

    def forward(self, x):
        if self.training and self.how and WHEN:
            self.fail()
        return sin(self.linear(x.flatten(1)))  # no packaged kernel replaces it

    def fail(self):
        HOW

def net(shape, outputs, *, how: str = "", folder: str = ""):
    return Net(shape, outputs, how, folder)
"""


@dataclass(frozen=True)
class Fail:
    """A probe in which one client fails: with an error, or by ending its process."""

    client: int
    how: str
    folder: Path | None = None

    def __call__(self, learner, job):
        if job.client != self.client:
            return {}
        if self.folder is not None:  # as often as there are marks
            marks = sorted(self.folder.glob("mark*"))
            if not marks:
                return {}
            marks[0].unlink()
        exec(KINDS.get(self.how, self.how), {"sys": sys, "os": os, "signal": signal, "faulthandler": faulthandler})
        return {}


@dataclass
class Failing(Part):
    """Client `client` fails in the rounds `rounds`."""

    roles: ClassVar = frozenset({"loss"})
    client: int
    how: str = "exception"
    rounds: tuple[int, ...] = (0, 1, 2, 3)
    folder: Path | None = None

    def send(self, work):
        bad = work.round in self.rounds and work.probe is None
        return replace(work, probe=Fail(self.client, self.how, self.folder)) if bad else work


@pytest.fixture
def pool(digits):
    engine = processes(digits, workers=2)
    yield engine
    engine.close()


@pytest.fixture(params=["serial", "processes"])
def engine(request, digits):
    made = Serial(digits) if request.param == "serial" else processes(digits, workers=2)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _as_in_a_run():
    """A run has its own handler of Ctrl-C; here nobody presses it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", KINDS)
def test_a_client_that_raises_is_an_error_with_its_own_lines(how, digits, engine):
    fed = Federation(digits, [Failing(2, how)], engine=engine)
    with pytest.raises(
        ClientError, match=r"^client 2 in round 1: \w+.* \(in .*test_failing\.py, line \d+: exec\("
    ) as caught:
        fed.round()
    assert "on_client_error=drop" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Federation(digits, engine=engine).round().dropped, "the workers still work"


def test_ctrl_c_is_no_error_of_a_client(digits):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        Federation(digits, [Failing(2, "KeyboardInterrupt")]).round()


def tables(fed):
    """The rows that parts keep of client 2."""
    found = {}
    for part in fed.parts:
        for name, value in part.state().items():
            if isinstance(value, ClientTable):
                found[name] = value[torch.tensor([2])].clone()
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in methods.names() if name not in ("mime", "mimelite", "qrmix")])
def test_a_dropped_client_leaves_its_state_as_it_was(name, digits, monkeypatch):
    """In round 2; all engines call this code."""
    real = Serial.client

    def client(self, job, delta, tries=1):
        if job.client == 2 and job.round == 1 and not job.purpose:
            real(self, job, delta, tries)
            raise ClientError("client 2 in round 2", "it failed")
        return real(self, job, delta, tries)

    monkeypatch.setattr(Serial, "client", client)
    local = Local(epochs=1, batch_size=8)
    fed = Federation(digits, parts(name), local=local, rounds=4, on_client_error="drop")
    first = fed.round()
    while fed.t < 1:
        first = fed.round()
    before = tables(fed)
    second = fed.round()
    assert first.dropped == 0
    assert second.dropped == len(second.failures) == 1
    assert 2 not in second.clients["client"]
    assert torch.isfinite(fed.w).all()
    for key, row in tables(fed).items():
        assert torch.equal(row, before[key]), key
    third = fed.round()
    assert 2 in third.clients["client"]
    assert torch.isfinite(fed.w).all()


@pytest.mark.parametrize("name", ["mime", "mimelite"])
def test_a_method_that_needs_every_client_says_so(name, digits):
    with pytest.raises(ArnoError, match=r"on_client_error=drop with Mime\w*: it needs every client of the cohort; use"):
        Federation(digits, parts(name), on_client_error="drop")


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedvarp", "fednova"])
def test_drops_have_the_same_bits_on_every_engine(name, digits, pool):
    feds = [
        Federation(
            digits, [*parts(name), Failing(2, rounds=(1,))], engine=e, local=Local(epochs=2), on_client_error="drop"
        )
        for e in (Serial(digits), pool)
    ]
    for _ in range(3):
        a, b = (fed.round() for fed in feds)
        assert steady(a.clients) == steady(b.clients)
        assert a.failures == b.failures
        assert a.dropped == b.dropped == (a.t == 1)
    assert torch.equal(feds[0].w, feds[1].w)


def test_a_dropped_update_counts_as_zero(digits):
    """As one that diverged: the weights of the others stay."""
    start, record = [], []
    for fails in (False, True):
        fed = Federation(digits, [Failing(2)] if fails else [], on_client_error="drop")
        start.append(fed.w.clone())
        record.append(fed.round())
    clean = Federation(digits)
    ((work, out),) = clean.engine.train(clean.blocks(range(7), 0))
    keep = torch.tensor([0, 1, 3, 4, 5, 6])
    expected = start[1] + work.weight[keep] @ out.delta[keep]
    torch.testing.assert_close(fed.w, expected)
    assert record[1].clients["weight"] == [record[0].clients["weight"][j] for j in keep]


def test_a_round_without_any_client_changes_nothing(digits, engine, monkeypatch):
    fed = Federation(digits, [*parts("fedavgm"), Failing(2)], engine=engine, on_client_error="drop")
    fed.round()
    monkeypatch.setattr(Failing, "select", lambda self, ids, t: [2])
    before = {name: value.clone() for name, value in fed.state().items() if isinstance(value, torch.Tensor)}
    record = fed.round()
    assert record.dropped == 1
    assert record.clients == {}
    assert fed.t == 2
    assert all(torch.equal(fed.state()[name], value) for name, value in before.items())


@pytest.mark.parametrize("marks", [2, 3])
def test_retry_tries_three_times_with_the_same_bits(marks, digits, engine, tmp_path):
    for i in range(marks):
        (tmp_path / f"mark{i}").touch()
    fed = Federation(digits, [Failing(2, folder=tmp_path)], engine=engine, on_client_error="retry")
    if marks == 3:
        with pytest.raises(
            ClientError, match=r"client 2 in round 1: ValueError: bad sample .*, 3 times; correct that code"
        ):
            fed.round()
        return
    fed.round()
    clean, _ = train(digits, Serial(digits), [], times=1, share=1.0, epochs=1, batch_size=32)
    assert torch.equal(fed.w, clean.w)


@pytest.mark.parametrize(
    "how", ["os._exit(7)", "faulthandler.disable(); os.kill(os.getpid(), signal.SIGSEGV)"], ids=["os._exit", "segfault"]
)
def test_a_client_that_ends_its_worker_is_dropped_after_three_tries(how, digits, pool):
    fed = Federation(digits, [Failing(2, how, rounds=(0,))], engine=pool, on_client_error="drop")
    record = fed.round()
    assert record.dropped == 1
    assert record.failures[0].startswith("client 2 in round 1: its worker died (exit status ")
    assert 2 not in record.clients["client"]
    assert fed.round().dropped == 0


def run(tmp_path, capsys, *words, when="len(x) > 50", how="raise ValueError('bad sample')"):
    """`arno run` with a network of the user's own that fails when this is true of a batch."""
    (tmp_path / "net.py").write_text(MODEL.replace("WHEN", when).replace("HOW", how))
    model = ["model=custom", f"model.target={tmp_path / 'net.py'}:net", "model.how=fail"]
    general = ["rounds=2", "clients=5", "data.limit=300", "local.batch_size=1000", "engine=serial"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *model, *general, *words, f"out={tmp_path / 'run'}"])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return ended.value.code, said


@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize("how", ["raise ValueError('bad sample')", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_one_line_names_the_file_the_line_and_the_code(how, engine, tmp_path, capsys):
    status, said = run(tmp_path, capsys, f"engine={engine}", how=how)
    assert status == 2
    (line,) = said.err.splitlines()
    assert line.startswith("error: client ")
    assert " in round 1: " in line
    assert f"{tmp_path / 'net.py'}, line 12: self.fail()" in line
    assert f"{tmp_path / 'net.py'}, line 16: {how}" in line
    assert RunResult(tmp_path / "run").folder.manifest()["status"] == "failed"


def test_drops_are_recorded_and_shown(tmp_path, capsys):
    status, said = run(tmp_path, capsys, "on_client_error=drop")
    assert status == 0
    result = RunResult(tmp_path / "run")
    lost = [row["dropped"] for row in result.rows]
    assert all(1 <= n < 5 for n in lost)
    assert [row["clients"] + row["dropped"] for row in result.rows] == [5, 5]
    assert "dropped: client " in said.out
    assert f"dropped {lost[0]}" in said.out
    assert "clients dropped" in said.out
    assert all(1.5 < row["train_loss"] < 3 for row in result.rows), "the mean over the clients that trained"
    assert "ValueError: bad sample" in (tmp_path / "run" / "log.txt").read_text()
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "r.html")])
    assert f"clients were dropped {sum(lost)} times" in (tmp_path / "r.html").read_text()


def test_a_run_that_stopped_at_a_client_goes_on_without_it(tmp_path, capsys):
    assert run(tmp_path, capsys)[0] == 2
    assert arno.resume(tmp_path / "run", "on_client_error=drop").dropped > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the trial is a fork")
@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ("os._exit(3)", "it ended the process that tried it (exit status 3)"),
        ("os.kill(os.getpid(), 9)", "it ended the process that tried it (signal 9)"),
        ("import time; time.sleep(10**6)", "its first passes took longer than 1 s (engine.timeout = 1 s)"),
    ],
)
def test_a_network_that_ends_its_process_or_hangs_is_refused_on_one_line(how, rule, tmp_path, capsys, monkeypatch):
    """The server runs a network before the first round, to choose its kernel: it must neither end nor wait for ever."""
    monkeypatch.setattr(user_code_trial, "LEAST", 1.0)
    status, said = run(tmp_path, capsys, "engine=processes", "engine.timeout=1", when="True", how=how)
    assert status == 2
    (line,) = said.err.splitlines()
    assert line.startswith(f"error: the network Net: {rule}; ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_network_that_always_exits_does_not_end_the_run_with_success(engine, tmp_path, capsys):
    status, said = run(tmp_path, capsys, f"engine={engine}", when="True", how="sys.exit(0)")
    assert status == 2
    (line,) = said.err.splitlines()
    assert line.startswith("error: client ")
    assert "SystemExit" in line


@pytest.mark.parametrize(
    "how", ["raise GeneratorExit", "raise type('Odd', (BaseException,), {})('bad')", "sys.exit(0)"]
)
def test_attack_a_part_that_raises_anything_is_one_line(how, tmp_path, capsys, monkeypatch):
    """On the server, where no client is in between: it may be no traceback, and it may not pass for success."""
    monkeypatch.chdir(tmp_path)
    Path("part.py").write_text(
        "import sys\nfrom arno import Part\n"
        f"class Odd(Part):\n    def select(self, ids, t):\n        {how}\n"
        "def factory():\n    return [Odd()]\n"
    )
    words = (
        "method=custom",
        "method.target=part.py:factory",
        "clients=4",
        "model=softmax",
        "engine=serial",
        "rounds=2",
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["run", *words, "out=run"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert f"part.py, line 5: {how}" in error
    assert error.count("\n") == 1
    manifest = RunResult("run").folder.manifest()
    assert manifest["status"] == "failed"
    assert f"part.py, line 5: {how}" in manifest["reason"]
