"""Any bytes as an IDX file: refused by name, or what they say."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noisescale.data.idx import parse_idx

FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FEW
@given(st.binary(max_size=200))
def test_any_bytes(content):
    try:
        found = parse_idx(content, "file")
    except Exception as refused:
        assert type(refused).__name__ in ("InputError", "DataUnavailableError", "ValueError")
        assert "file" in str(refused)
    else:
        assert found.nbytes <= len(content)


@FEW
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 3))
def test_genuine_ones_come_back(shape, spare):
    values = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    content = header + values.tobytes()
    np.testing.assert_array_equal(parse_idx(content, "file"), values)
    if spare:
        with pytest.raises(Exception, match="file"):
            parse_idx(content + bytes(spare), "file")
