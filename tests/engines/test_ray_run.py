"""`arno run engine=ray` on a cluster of its own: quiet, killed and resumed, gone when it is over."""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest
import torch

import arno
from arno.runs.result import RunResult

pytest.importorskip("ray", reason="needs pip install 'arno[ray]'")

METHOD = """
import time
from dataclasses import dataclass
from pathlib import Path
from arno.core.method_part import Part

@dataclass
class Gate(Part):
    folder: str

    def begin(self, t):
        if t == 3:
            Path(self.folder, "here").touch()
            while not Path(self.folder, "go").exists():
                time.sleep(0.01)

def factory(*, folder: str = ""):
    return [Gate(folder)]
"""


def until(true, seconds=120):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def alive(processes):
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it may end between the two questions
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def words(tmp_path):
    (tmp_path / "gate.py").write_text(METHOD)
    method = ["method=custom", f"method.target={tmp_path / 'gate.py'}:factory", f"method.folder={tmp_path}"]
    # A model that goes through the object store: with a light one a run outlives its head for a minute, and ends well.
    return [*method, "rounds=5", "clients=6", "checkpoint.every=2", "model.hidden=[512]", "data.limit=200"]


@pytest.fixture
def started(words, tmp_path):
    """A run that waits at the beginning of its fourth round, with the processes of its Ray."""
    command = [sys.executable, "-m", "arno", "run", "engine=ray", "engine.workers=2", *words, f"out={tmp_path / 'run'}"]
    process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: (tmp_path / "here").exists() or process.poll() is not None)
    everybody = process.children(recursive=True)
    yield process, [p for p in everybody if "Agent" not in p.name()]  # Ray's two agents go a minute later
    for each in alive([process, *everybody]):
        each.kill()
    process.wait(60)
    process.stdout.close()


def listening(family):
    """The addresses on which processes listen."""
    found = []
    for process in alive(family):
        with suppress(psutil.NoSuchProcess):
            found += [c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    return found


def test_attack_ray_local_listens_on_loopback_alone(started):
    """attacks.md: Ray, local, listened on all interfaces."""
    process, _ = started
    addresses = listening([process, *process.children(recursive=True)])
    assert len(addresses) >= 4
    assert {address.removeprefix("::ffff:") for address in addresses} == {"127.0.0.1"}


def test_the_head_is_killed_and_the_run_resumed(started, words, tmp_path):
    process, family = started
    head = [p for p in family if p.name() in ("gcs_server", "raylet")]
    assert len(head) == 2
    for each in head:
        each.kill()
    (tmp_path / "go").touch()
    until(lambda: process.poll() is not None)
    assert process.returncode != 0
    logs = tmp_path / "run" / "logs" / "session"
    assert list(logs.glob("worker-*.err"))  # what Ray wrote can be found from the run's folder

    again = [sys.executable, "-m", "arno", "resume", str(tmp_path / "run"), "engine.workers=1"]
    ended = subprocess.run(again, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert lines[0].endswith("engine ray (1 workers)")
    assert lines[2].startswith("round 3/5  ")  # after the line about the validation data
    assert lines[-1] == str(tmp_path / "run")
    assert not logs.exists()
    assert list(logs.parent.glob("worker-*.err"))

    whole = arno.run(*words, engine={"kind": "serial", "threads": 1}, out=str(tmp_path / "serial"))
    resumed = RunResult(tmp_path / "run")
    assert torch.equal(whole.final, resumed.final)
    own = [column for column in whole.clients.columns if column != "seconds"]
    assert whole.clients[own].equals(resumed.clients[own])
    assert resumed.folder.manifest()["engine"]["equality"] == "bit for bit as serial"
    until(lambda: not alive(family))


@pytest.mark.parametrize("end", ["SIGINT", "SIGKILL"])
def test_nothing_is_left_behind(end, started, tmp_path):
    process, family = started
    assert len(family) >= 4  # the head, the node, two workers
    process.send_signal(getattr(signal, end))
    if end == "SIGINT":
        (tmp_path / "go").touch()
    said = process.stdout.read()
    assert process.wait(60) == (130 if end == "SIGINT" else -signal.SIGKILL)
    assert len(said.splitlines()) == (8 if end == "SIGINT" else 5), said
    until(lambda: not alive(family))
