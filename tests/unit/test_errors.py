"""Errors that a user sees cross to another process as what they are."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from pathlib import Path

import pytest

from arno.cli import main
from arno.engines.packing import portable
from arno.errors import ArnoError, Diverged, described


@pytest.mark.parametrize("error", [ArnoError("a", "b", "c"), ArnoError("a", "b"), Diverged("a", "b")])
def test_a_copy_in_another_process_says_the_same(error):
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))
    assert portable(error) is error, "an engine need not put it into words"


def test_attack_an_error_sends_nothing_to_the_terminal_but_one_line(capsys, tmp_path, monkeypatch):
    """Names of columns, clients and files come from elsewhere; a terminal would obey the escape sequences in them."""
    odd = "\x1b[2J\x1b]0;title\x07\r\u202enomore\n\x9b31m"
    assert str(ArnoError(odd, odd, odd)).isprintable()
    assert described(ValueError(odd)).isprintable()
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("a,\x1b[2Jb\n1,2\n3,4\n")
    with pytest.raises(SystemExit, match="2"):
        main(["run", "data=table", "data.path=table.csv", "data.label=y"])
    error = capsys.readouterr().err
    assert "the columns are a, ?[2Jb" in error
    assert error.rstrip("\n").isprintable()


def test_attack_a_thread_that_fails_is_one_line(capsys):
    """TensorBoard writes in a thread; on a full disk its traceback came before our line."""
    with pytest.raises(SystemExit, match="2"):
        main(["methods", "nowhere"])
    capsys.readouterr()
    for error in (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "events"), ValueError("a\nb"), SystemExit(3)):
        thread = threading.Thread(target=_raise, args=(error,))
        thread.start()
        thread.join()
    lines = capsys.readouterr().err.splitlines()
    full = "cannot write events: No space left on device; free some space, then repeat the command"
    assert lines[0] == f"warning: a thread failed: {full}"
    assert lines[1].startswith("warning: a thread failed: ValueError: a b (in ")
    assert len(lines) == 2


def _raise(error):
    raise error
