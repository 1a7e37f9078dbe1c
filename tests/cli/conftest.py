import pytest


@pytest.fixture(autouse=True)
def _wide_and_plain(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
