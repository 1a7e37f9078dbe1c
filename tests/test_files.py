"""Files are written whole or not at all, and nothing but a file is read."""

import os
import re
import resource
import signal
import stat
from pathlib import Path

import pytest

import noisescale
from noisescale.errors import InputError
from noisescale.files import read_bytes, read_text, write_whole


def refused(path, *, why=""):
    return pytest.raises(InputError, match=f"{re.escape(str(path))} cannot be .*{why}")


@pytest.fixture
def room_for_a_kilobyte():
    """A disk that is full after so much."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_leaves_the_old_file(tmp_path, room_for_a_kilobyte):
    path = tmp_path / "d.json"
    write_whole(path, "old")
    with refused(path, why="File too large"):
        write_whole(path, "new" * 1_000)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["d.json"]


def test_what_is_not_on_the_disk_replaces_nothing(tmp_path, monkeypatch):
    path = tmp_path / "d.json"
    write_whole(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refused(path, why="No space left"):
        write_whole(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_written_through_a_link_or_a_pipe(tmp_path):
    path, other = tmp_path / "d.json", tmp_path / "other"
    other.write_text("theirs")
    for make in (lambda at: at.symlink_to(other), os.mkfifo):
        path.unlink(missing_ok=True)
        make(path)
        write_whole(path, "ours")
        assert path.read_text() == "ours"
        assert not path.is_symlink()
    assert other.read_text() == "theirs"
    assert {entry.name for entry in tmp_path.iterdir()} == {"d.json", "other"}


@pytest.mark.parametrize("name", ["no/d.json", "folder", "file/d.json", "x" * 300, "a\0b"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with refused(tmp_path / "folder" if name == "folder" else ""):
        write_whole(tmp_path / name, "text")
    assert {entry.name for entry in tmp_path.iterdir()} == {"folder", "file"}


def test_a_new_file_is_as_open_as_the_user_wants_and_an_old_one_as_it_was(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "text", make_folder=True)
    finally:
        os.umask(before)
    (tmp_path / "old").write_text("")
    (tmp_path / "old").chmod(0o600)
    write_whole(tmp_path / "old", "text")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "old")]
    assert modes == [0o640, 0o600]


@pytest.mark.skipif(os.access("/", os.W_OK), reason="root may write everything")
def test_a_write_protected_file_stays(tmp_path):
    path = tmp_path / "d.json"
    path.write_text("old")
    path.chmod(0o400)
    with refused(path, why="write-protected"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_halves_of_letters_are_written_as_escapes(tmp_path):
    write_whole(tmp_path / "d", "\ud800 \N{GREEK SMALL LETTER EPSILON}")
    assert read_text(tmp_path / "d") == "\\ud800 \N{GREEK SMALL LETTER EPSILON}"


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(60 * 2**30)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "not a file"),
        (Path.mkdir, "a folder"),
        (make_sparse, "64,424,509,440 bytes"),
        (lambda path: path.write_bytes(b"\xff"), "not text"),
        (lambda path: path.symlink_to(path), "[Ss]ymbolic links"),
        (lambda path: None, "No such file"),
    ],
    ids=["pipe", "device", "folder", "sparse", "bytes", "loop", "nothing"],
)
def test_nothing_but_a_file_of_text_is_read(tmp_path, make, why):
    path = tmp_path / "d.json"
    make(path)
    with refused(path, why=why):
        read_text(path)


def test_a_file_is_read_up_to_a_size(tmp_path):
    path = tmp_path / "d"
    path.write_bytes(b"123")
    assert read_bytes(path, 3) == b"123"
    with refused(path, why="3 bytes"):
        read_bytes(path, 2)


def test_there_is_one_writer():
    """Whatever else writes a file would write through links, and halves of it on a full disk."""
    direct = re.compile(
        r"\.write_(text|bytes)\(|open\([^)]*[\"'][wax]|\.replace\(path\)|savefig\((?!buffer)"
        r"|\.to_(csv|parquet)\((?!index|\))"
    )
    source = Path(noisescale.__file__).parent
    writers = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if direct.search(path.read_text(encoding="utf-8"))
    }
    assert writers == {"files.py", str(Path("data", "sources.py"))}  # pip's list of requirements
