"""Downloads: whole, resumed, refused."""

from __future__ import annotations

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from arno.data import download
from arno.data.download import fetch, home, obtain
from arno.errors import ArnoError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT; understands Range on /file, not on /plain; hangs up halfway on /broken."""

    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.asked.append((self.path, asked))
        if self.path == "/missing":
            return self.send_error(404)
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "http://example.org/file")
            return self.end_headers()
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.path == "/file" else 0
        if start >= len(CONTENT):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(CONTENT)}")
            return self.end_headers()
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = len(CONTENT) // 2 if self.path == "/broken" else len(CONTENT)
        self.wfile.write(CONTENT[start:end])
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_whole_download_appears_at_once_and_is_not_repeated(server, tmp_path):
    path = tmp_path / "deep" / "file"
    assert fetch(server.url + "/file", path, md5=MD5, size=len(CONTENT)).read_bytes() == CONTENT
    fetch(server.url + "/file", path, md5=MD5)
    assert server.asked == [("/file", None)]
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("route", ["file", "plain"])
def test_an_interrupted_download_goes_on(server, tmp_path, route):
    (tmp_path / "x.part").write_bytes(CONTENT[:1000])
    assert fetch(f"{server.url}/{route}", tmp_path / "x", md5=MD5).read_bytes() == CONTENT
    assert server.asked == [(f"/{route}", "bytes=1000-")]


def test_a_part_that_is_whole_is_only_checked(server, tmp_path):
    (tmp_path / "x.part").write_bytes(CONTENT)
    fetch(server.url + "/file", tmp_path / "x", md5=MD5)
    assert server.asked == [("/file", f"bytes={len(CONTENT)}-")]


def test_a_part_that_is_too_long_is_thrown_away(server, tmp_path):
    (tmp_path / "x.part").write_bytes(CONTENT + b"more")
    assert fetch(server.url + "/file", tmp_path / "x", md5=MD5).read_bytes() == CONTENT
    assert [asked for _, asked in server.asked] == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_wrong_part_fails_the_checksum_and_is_removed(server, tmp_path):
    (tmp_path / "x.part").write_bytes(b"?" * 1000)
    with pytest.raises(ArnoError, match=f"MD5 [0-9a-f]{{32}}: the published file has {MD5}; run again"):
        fetch(server.url + "/file", tmp_path / "x", md5=MD5)
    assert list(tmp_path.glob("x*")) == []
    assert fetch(server.url + "/file", tmp_path / "x", md5=MD5).read_bytes() == CONTENT


def test_a_wrong_size_is_an_error(server, tmp_path):
    with pytest.raises(ArnoError, match=rf"{len(CONTENT)} bytes: 7 were announced"):
        fetch(server.url + "/file", tmp_path / "x", size=7)
    assert not (tmp_path / "x").exists()


def test_a_connection_that_breaks_leaves_its_part(server, tmp_path):
    with pytest.raises(ArnoError, match=f"ended after {len(CONTENT) // 2} of {len(CONTENT)} bytes; .*it resumes"):
        fetch(server.url + "/broken", tmp_path / "x", md5=MD5)
    assert not (tmp_path / "x").exists()
    fetch(server.url + "/file", tmp_path / "x", md5=MD5)
    assert server.asked[-1] == ("/file", f"bytes={len(CONTENT) // 2}-")


def test_refusals_are_one_line(server, tmp_path):
    with pytest.raises(ArnoError, match="answers 404"):
        fetch(server.url + "/missing", tmp_path / "x")
    with pytest.raises(ArnoError, match=r"cannot download http://127\.0\.0\.1:9/x: .*put x into") as caught:
        fetch("http://127.0.0.1:9/x", tmp_path / "x")
    assert "\n" not in str(caught.value)
    with pytest.raises(ArnoError, match="only https is allowed"):
        fetch("file:///etc/hostname", tmp_path / "x")


def test_a_folder_of_the_user_is_never_written_to(server, tmp_path):
    own = tmp_path / "own"
    with pytest.raises(ArnoError, match="no such folder"):
        home("mnist", str(own))
    own.mkdir()
    with pytest.raises(ArnoError, match="is empty"):
        home("mnist", str(own))
    (own / "other").touch()
    with pytest.raises(ArnoError, match="file is missing"):
        obtain(home("mnist", str(own)), str(own), server.url + "/file", MD5)
    assert server.asked == []
    assert obtain(home("mnist", None), None, server.url + "/file", MD5) == tmp_path / "store" / "mnist" / "file"


def test_attack_plain_http_with_md5_is_refused_and_every_published_address_is_https(tmp_path):
    with pytest.raises(ArnoError, match="only https is allowed"):
        fetch("http://example.org/file", tmp_path / "x", md5=MD5)
    sources = Path(download.__file__).parent.rglob("*.py")
    found = [url for source in sources for url in re.findall(r"(\w+)://[\w.]+", source.read_text())]
    assert len(found) >= 6
    assert set(found) == {"https"}


def test_attack_plain_http_by_a_redirect_is_refused(server, tmp_path):
    with pytest.raises(ArnoError, match=r"cannot download http://example\.org/file: only https is allowed"):
        fetch(server.url + "/moved", tmp_path / "x", md5=MD5)


def test_attack_files_already_present_are_checked_by_the_published_digest(server, tmp_path):
    (tmp_path / "x").write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(ArnoError, match=rf"x: MD5 [0-9a-f]{{32}}: the published file has {MD5}; delete it .*/x"):
        fetch(server.url + "/file", tmp_path / "x", md5=MD5)
    with pytest.raises(ArnoError, match=rf"x: {len(CONTENT)} bytes: the published file has 7; delete it"):
        fetch(server.url + "/file", tmp_path / "x", size=7)
    assert server.asked == []


def test_attack_files_already_present_are_checked_by_the_noted_digest(server, tmp_path):
    path = fetch(server.url + "/file", tmp_path / "x")
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    assert (tmp_path / "x.sha256").read_text() == f"{sha256}  x\n"
    assert fetch(server.url + "/file", path) == path
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(ArnoError, match=rf"x: SHA-256 [0-9a-f]{{64}}: x\.sha256 says '{sha256}'; delete it"):
        fetch(server.url + "/file", path)


def test_a_file_without_a_noted_digest_gets_one(server, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    fetch(server.url + "/file", path)
    path.write_bytes(b"new")
    with pytest.raises(ArnoError, match=r"x\.sha256 says"):
        fetch(server.url + "/file", path)
    assert server.asked == []


def test_a_file_of_the_user_is_checked_by_a_digest_beside_it(tmp_path):
    (tmp_path / "x").write_bytes(b"mine")
    assert obtain(tmp_path, str(tmp_path), "https://example.org/x", MD5) == tmp_path / "x"
    (tmp_path / "x.sha256").write_text("0" * 64 + "  x\n")
    with pytest.raises(ArnoError, match=r"x\.sha256 says '000"):
        obtain(tmp_path, str(tmp_path), "https://example.org/x", MD5)
