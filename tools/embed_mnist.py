"""Make src/noisescale/data/embedded/mnist.xz from the genuine MNIST, and print its sha256."""

import hashlib
import lzma
from pathlib import Path

from noisescale import data
from noisescale.data.cache import obtain
from noisescale.data.idx import parse_idx
from noisescale.data.sources import MNIST

contents, _ = obtain(MNIST, print)
n_train, n_test = data.EMBEDDED_SIZES
raw = b"".join(
    parse_idx(contents[file.name], file.name)[:count].tobytes()
    for file, count in zip(MNIST.files, (n_train, n_train, n_test, n_test), strict=True)
)
packed = lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)
target = Path(data.__file__).parent / "embedded" / "mnist.xz"
target.write_bytes(packed)
print(f"{target}: {len(packed):,} bytes, sha256 {hashlib.sha256(packed).hexdigest()}")
