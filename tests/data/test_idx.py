import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from noisescale.data.idx import parse_idx
from noisescale.errors import InputError


def encode(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.tobytes()


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=9)))
def test_round_trip(array):
    np.testing.assert_array_equal(parse_idx(encode(array), "it"), array)


@given(st.binary(max_size=60) | st.binary(max_size=40).map(lambda b: b"\x00\x00\x08\x02" + b))
def test_any_bytes_give_an_array_or_one_sentence(content):
    try:
        assert parse_idx(content, "it").dtype == np.uint8
    except InputError as error:
        assert str(error).startswith("it ")
        assert "\n" not in str(error)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"\x00"])
def test_truncated_or_padded(change):
    whole = encode(np.zeros((3, 2), np.uint8))
    with pytest.raises(InputError, match="announces 3 x 2 bytes of data but holds"):
        parse_idx(change(whole), "it")


def test_another_type():
    with pytest.raises(InputError, match="not an IDX file of unsigned bytes"):
        parse_idx(b"\x00\x00\x0d\x01\x00\x00\x00\x00", "it")
