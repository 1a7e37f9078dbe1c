import json

from command_line import run


def test_data_lists_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path))
    done = run("data")
    assert done.code == 0
    for word in ("mnist", "fashion-mnist", "mnist-embedded", "digits", "missing", "verified"):
        assert word in done.out
    rows = json.loads(run("data", "--json").out)
    states = {row["name"]: row["state"] for row in rows}
    assert states["mnist"] == "missing"
    assert states["mnist-embedded"] == "verified"
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"cut short")
    rows = json.loads(run("data", "--json").out)
    assert {row["name"]: row["state"] for row in rows}["mnist"] == "altered"


def test_fetch(full_mnist):
    done = run("data", "fetch", "mnist", "--json")
    assert done.code == 0
    assert json.loads(done.out)["fingerprint"] == full_mnist.fingerprint


def test_flags_of_the_group_reach_its_commands(full_mnist):
    done = run("data", "--json", "fetch", "mnist")
    assert json.loads(done.out)["name"] == "mnist"
