"""Damaged files of a run. Every test names the line of `attacks.md` that it covers.

A run with a damaged file either continues to the same result, to the bit, or is refused before anything is trained, on
one line that names the file and the remedy; after `arno repair` it continues to the same result.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from outcome import Outcome, Said

from arno import ArnoError
from arno.analysis.comparison import Comparison
from arno.cli import main
from arno.core.federation import Federation
from arno.records import metrics_file
from arno.records.damage import Damaged
from arno.records.folder import PREVIOUS, RunFolder
from arno.records.lock import writing
from arno.records.repair import repair
from arno.runs.result import RunResult
from arno.runs.run import resume


def flip(data: bytes, at: int) -> bytes:
    at = min(at, len(data) - 1)
    return data[:at] + bytes([data[at] ^ 0x04]) + data[at + 1 :]


def zeros(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a byte flipped near the start": lambda data: flip(data, 11),
    "a byte flipped in the middle": lambda data: flip(data, len(data) // 2),
    "the last byte flipped": lambda data: flip(data, len(data) - 1),
    "truncated": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "empty": lambda data: b"",
    "garbage": lambda data: random.Random(0).randbytes(len(data)),
    "zeros in the middle": lambda data: zeros(data, len(data) // 2),
    "zeros alone": lambda data: bytes(len(data)),
}
LINES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "line 2 twice": lambda lines: [*lines[:2], *lines[1:]],
    "line 2 again at the end": lambda lines: [*lines, lines[1]],
    "the first line removed": lambda lines: lines[1:],
    "line 3 removed": lambda lines: lines[:2] + lines[3:],
    "the last line removed": lambda lines: lines[:-1],
    "lines 2 and 3 exchanged": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "all lines twice": lambda lines: lines + lines,
}
MISSING = "missing"
FILES = ("config.yaml", "manifest.json", "metrics.jsonl", "clients-", "checkpoint")


def find(run: Path, name: str, which: int = -1) -> Path:
    """A file of a run: the newest checkpoint, the newest piece of the rows of clients up to it, or the file `name`."""
    folder = RunFolder(run)
    if name == "checkpoint":
        return folder.saved()[which]
    return sorted(folder.checkpoints.glob("clients-*"))[which] if name == "clients-" else run / name


def break_file(path: Path, how: str) -> None:
    if how == MISSING:
        path.unlink()
    elif how in DAMAGE:
        path.write_bytes(DAMAGE[how](path.read_bytes()))
    else:
        path.write_bytes(b"".join(LINES[how](path.read_bytes().splitlines(keepends=True))))


def outcome(run: Path, file: Path, rounds: int, monkeypatch: pytest.MonkeyPatch) -> Outcome | None:
    """What the run becomes; None if it was refused as it must be: before training, naming the file and the remedy."""
    trained = []
    plain = Federation.round
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "round", lambda self: trained.append(self.t) or plain(self))
        try:
            return Outcome(resume(run, f"rounds={rounds}", pictures=False).path)
        except ArnoError as error:
            assert not trained, "nothing is trained before the damage is found"
            text = str(error)
            assert file.name[:8] in text
            assert text.endswith(f"; arno repair {run}")
            assert "\n" not in text
            return None


@pytest.mark.parametrize("how", [*DAMAGE, MISSING])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("state", ["finished", "killed"])
def test_damaged_config_manifest_metrics_clients_checkpoint(state, name, how, request, copy, six, eight, monkeypatch):
    """attacks.md: damaged checkpoint; damaged config.yaml / manifest.json; metrics.jsonl; clients-*.parquet."""
    run = copy(request.getfixturevalue(state))
    file = find(run, name)
    break_file(file, how)
    rounds, want = (8, eight) if state == "finished" else (6, six)
    found = outcome(run, file, rounds, monkeypatch)
    assert (found is None) or found == want
    assert found is not None or name not in ("checkpoint", "manifest.json"), "these fall back by themselves"
    if found is None:
        done = repair(run)
        assert done
        assert repair(run) == [], "nothing is left to repair"
        if how != MISSING:
            kept = [path for path in run.rglob("*.damaged*") if path.name.startswith(file.name)]
            assert kept, "the damaged file is kept"
        assert outcome(run, file, rounds, monkeypatch) == want


@pytest.mark.parametrize("how", LINES)
@pytest.mark.parametrize("state", ["finished", "killed"])
def test_damaged_metrics_jsonl_lines(state, how, request, copy, six, eight, monkeypatch):
    """attacks.md: damaged metrics.jsonl (54 silent)."""
    run = copy(request.getfixturevalue(state))
    rounds, want = (8, eight) if state == "finished" else (6, six)
    file = run / metrics_file.NAME
    break_file(file, how)
    found = outcome(run, file, rounds, monkeypatch)
    tail = ["line 2 again at the end", "all lines twice", *(["the last line removed"] if state == "killed" else [])]
    assert (found is not None) == (how in tail), "only what lies after the checkpoint is cut off without a word"
    if found is None:
        done = repair(run)
        if how == "line 2 twice":
            assert not any("went back" in line for line in done), "an identical line is removed, nothing is lost"
            assert RunFolder(run).manifest()["status"] == ("done" if state == "finished" else "running")
        found = outcome(run, file, rounds, monkeypatch)
    assert found == want


def test_damaged_metrics_jsonl_every_byte(finished, copy):
    """attacks.md: damaged metrics.jsonl. No wrong byte is read as another number."""
    run = copy(finished)
    file = run / metrics_file.NAME
    good, folder = file.read_bytes(), RunFolder(run)
    for at in [*range(good.index(b"\n") + 1), *range(len(good) - 9, len(good))]:
        for bit in (0, 3, 6):
            file.write_bytes(good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :])
            with pytest.raises(Damaged, match=r"metrics\.jsonl"):
                folder.rows()


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json"])
def test_damaged_config_yaml_manifest_json_every_byte(name, finished, copy):
    """attacks.md: damaged config.yaml / manifest.json (6 tracebacks)."""
    run = copy(finished)
    folder, file = RunFolder(run), run / name
    good, read = file.read_bytes(), (RunFolder.config if name == "config.yaml" else RunFolder.manifest)
    for at in [*range(40), *range(40, len(good), 13), len(good) - 1]:
        for bit in (0, 5):
            file.write_bytes(good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1 :])
            with pytest.raises(Damaged, match=rf"{re.escape(name)}.*arno repair"):
                read(folder)


@pytest.mark.parametrize("how", [*DAMAGE, MISSING])
@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "metrics.jsonl", "clients.parquet", "counts.npy"])
def test_report_of_a_damaged_run_is_one_line(name, how, finished, copy):
    """attacks.md: damaged config.yaml / manifest.json / metrics.jsonl: tracebacks of `arno report`."""
    run = copy(finished)
    break_file(run / name, how)
    if name in ("clients.parquet", "counts.npy") and how == MISSING:
        pytest.skip("a report without it says what is missing")

    def read() -> None:
        result = RunResult(run)
        Comparison.of([run])
        _ = result.rows, result.clients, result.counts

    with pytest.raises(ArnoError, match=rf"{re.escape(name)}.*; (arno repair|give)") as refused:
        read()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["final.safetensors", "best.safetensors", "clients.parquet", "panels.json"])
@pytest.mark.parametrize("how", ["a byte flipped in the middle", MISSING])
def test_damaged_results_are_rebuilt(name, how, finished, copy, six):
    """attacks.md: damaged clients-*.parquet; here what a finished run wrote at its end."""
    run = copy(finished)
    break_file(run / name, how)
    assert any(name in line for line in repair(run))
    if name != "clients.parquet":
        assert RunFolder(run).manifest()["status"] == "interrupted"
        resume(run, pictures=False)
    assert Outcome(run) == six
    assert RunFolder(run).panels() == []


def test_damaged_checkpoint_falls_back_with_a_warning(killed, copy, six, said: Said):
    """attacks.md: damaged checkpoint: no automatic fallback."""
    run = copy(killed)
    last = find(run, "checkpoint")
    break_file(last, "truncated")
    assert Outcome(resume(run, progress=said, pictures=False).path) == six
    (warning,) = [line for line in said.lines if line.startswith("warning:")]
    assert str(last) in warning
    assert "continues from the previous checkpoint" in warning
    assert warning in (run / "log.txt").read_text()


def test_damaged_checkpoints_all_of_them(killed, copy, six):
    """attacks.md: damaged checkpoint. Without any the run starts again, after the user has asked for it."""
    run = copy(killed)
    for path in RunFolder(run).saved():
        break_file(path, "garbage")
    with pytest.raises(ArnoError, match="no checkpoint can be read; arno repair"):
        resume(run)
    assert any("computes all rounds again" in line for line in repair(run))
    assert Outcome(resume(run, pictures=False).path) == six


@pytest.mark.parametrize("previous", ["whole", "damaged", "missing"])
def test_damaged_manifest_falls_back_with_a_warning(previous, killed, copy, six, said: Said):
    """attacks.md: damaged manifest.json: 31 refuse to resume despite a good checkpoint."""
    run = copy(killed)
    break_file(run / "manifest.json", "a byte flipped in the middle")
    if previous != "whole":
        break_file(run / PREVIOUS, "garbage" if previous == "damaged" else MISSING)
    assert Outcome(resume(run, progress=said, pictures=False).path) == six
    (warning,) = [line for line in said.lines if line.startswith("warning:")]
    assert "manifest.json" in warning
    assert ("the previous manifest is used" if previous == "whole" else "it is written again") in warning
    assert (run / "manifest.json.damaged").exists()


def test_damaged_config_yaml_without_a_checkpoint(killed, copy, six):
    """attacks.md: damaged config.yaml. Before the first checkpoint the command in the manifest holds the settings."""
    run = copy(killed)
    RunFolder(run).rewind(0)
    break_file(run / "config.yaml", "truncated")
    assert "config.yaml was rebuilt from the manifest" in repair(run)
    found = Outcome(resume(run, pictures=False).path)
    assert found == six
    break_file(run / "config.yaml", MISSING)
    for path in (*RunFolder(run).saved(), run / "manifest.json", run / PREVIOUS):
        path.unlink()
    with pytest.raises(ArnoError, match=r"config\.yaml: is missing, and neither .*start the run again"):
        repair(run)


def test_damaged_first_piece_of_the_clients_without_a_checkpoint_before_it(killed, copy, six):
    """attacks.md: damaged clients-*.parquet: 37 tracebacks, after all rounds were computed."""
    run = copy(killed)
    piece = find(run, "clients-", 0)
    break_file(piece, "a byte flipped in the middle")
    with pytest.raises(ArnoError, match=r"clients-00000002.*checksum does not match; arno repair"):
        resume(run)
    done = repair(run)
    assert "the rows of the clients of rounds 1 to 2 are lost; models and scores are not affected" in done
    found = Outcome(resume(run, pictures=False).path)
    assert (found.models, found.rows) == (six.models, six.rows)
    assert found.clients["round"] == [t for t in six.clients["round"] if t > 2]
    assert piece.with_name(f"{piece.name}.damaged").exists()


def test_damaged_piece_of_the_clients_of_a_finished_run(finished, copy, eight):
    """attacks.md: damaged clients-*.parquet. The rows of a finished run are in clients.parquet, too."""
    run = copy(finished)
    break_file(find(run, "clients-", 0), "garbage")
    assert "the rows of the clients in checkpoints were rebuilt from clients.parquet" in repair(run)
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight


def test_damaged_metrics_jsonl_before_every_checkpoint(killed, copy, six):
    """attacks.md: damaged metrics.jsonl. Without a checkpoint before the damage all rounds are computed again."""
    run = copy(killed)
    break_file(run / metrics_file.NAME, "the first line removed")
    before = {path.name: path.read_bytes() for path in (run / "checkpoints").iterdir()}
    assert any("to the beginning" in line for line in repair(run))
    kept = {path.name.removesuffix(".damaged"): path.read_bytes() for path in (run / "checkpoints").iterdir()}
    assert kept == before, "nothing is deleted"
    assert Outcome(resume(run, pictures=False).path) == six


def test_two_writers_a_folder_without_its_manifest_is_not_written_over(killed, copy):
    """attacks.md: two `run` with one `out=`; a lost manifest must not make the folder look new."""
    run = copy(killed)
    (run / "manifest.json").unlink()
    with pytest.raises(ArnoError, match="it holds a run already"):
        RunFolder(run).refuse_used()


def test_a_whole_run_needs_no_repair(finished, killed, copy, tmp_path):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert repair(finished) == []
    assert repair(killed) == []
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(ArnoError, match="is no run"):
        repair(tmp_path)


def test_the_command_says_what_it_did(killed, copy, capsys):
    run = copy(killed)
    break_file(run / metrics_file.NAME, "line 2 twice")
    for expected in ([f"continue with: arno resume {run}"], ["nothing is damaged"]):
        with pytest.raises(SystemExit) as left:
            main(["repair", str(run)])
        assert left.value.code == 0
        assert capsys.readouterr().out.splitlines()[-1:] == expected
    with writing(run, "a run"), pytest.raises(SystemExit) as left:
        main(["repair", str(run)])
    assert left.value.code == 2
    assert "is being written by" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main(["repair", str(run / "nowhere")])
    assert left.value.code == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_damaged_clients_parquet_of_release_0_1(finished, copy, eight):
    """attacks.md: damaged clients-*.parquet. Pieces and manifests of release 0.1 have no checksums."""
    run = copy(finished)
    manifest = RunFolder(run).manifest()
    del manifest["checksums"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    for piece in (run / "checkpoints").glob("clients-*.parquet"):
        piece.rename(piece.with_name(f"{piece.name[:16]}.parquet"))
    break_file(find(run, "clients-", 0), "garbage")
    with pytest.raises(ArnoError, match=r"clients-00000002\.parquet: cannot be read .*; arno repair"):
        resume(run, "rounds=8")
    assert "the rows of the clients in checkpoints were rebuilt from clients.parquet" in repair(run)
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight


def test_damaged_config_yaml_of_release_0_1(finished, copy, eight):
    """attacks.md: damaged config.yaml. Without a checksum a missing end shows in the settings of the checkpoint."""
    run = copy(finished)
    text = (run / "config.yaml").read_text().split("\n", 1)[1]
    (run / "config.yaml").write_text(text[: text.index("\non_divergence")] + "\n")
    with pytest.raises(ArnoError, match=r"config\.yaml: it lacks .*, which the checkpoint has; arno repair"):
        resume(run, "rounds=8")
    assert "config.yaml was rebuilt from a checkpoint" in repair(run)
    assert Outcome(resume(run, "rounds=8", pictures=False).path) == eight
