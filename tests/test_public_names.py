import noisescale as ns


def test_every_public_name_resolves():
    assert all(getattr(ns, name) is not None for name in ns.__all__)
    assert set(ns.__all__) <= set(dir(ns))


def test_no_function_shares_its_name_with_a_subpackage():
    from importlib import resources

    folders = {path.name for path in resources.files("noisescale").iterdir() if path.is_dir()}
    assert not folders & set(ns.__all__)


def test_unknown_names_say_so():
    import pytest

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        ns.nonsense  # noqa: B018
