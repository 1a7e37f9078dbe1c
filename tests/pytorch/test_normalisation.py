"""What is said about normalisation, and when."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")
import noisescale.torch as nst  # noqa: E402
from pytorch.zoo import animal  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore::noisescale.NotAMinimumWarning"),
]


def notes(name, **settings):
    a = animal(name)
    found = nst.log_evidence(a.module, a.data, prior_precision=0.7, **settings)
    return [note for note in found.notes if "normalisation" in note or "Antoran" in note]


def test_batch_normalisation_is_another_function():
    (note,) = notes("cnn")
    assert note.startswith("batch normalisation (norm) uses its running statistics here")
    assert "fold or freeze it" in note


def test_scale_free_weights():
    (note,) = notes("resnet")
    assert note.startswith("GroupNorm (norm) does not see the scale of what comes before it")
    assert "select='head', which comes after it" in note
    assert len(notes("vit")) == 1
    assert len(notes("bert")) == 1


def test_what_comes_after_the_last_normalisation_is_clean():
    assert notes("resnet", select="head") == []
    assert notes("vit", select="head") == []
    assert notes("mlp") == []


def test_it_does_so_once_for_the_module_of_another_library():
    class OwnRMSNorm(torch.nn.Module):
        def forward(self, x):
            return x / x.square().mean(-1, keepdim=True).sqrt()

    module = torch.nn.Sequential(torch.nn.Linear(3, 4), OwnRMSNorm(), torch.nn.Linear(4, 2))
    data = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    notes = nst.log_evidence(module, data, prior_precision="auto").notes
    (note,) = (n for n in notes if n.startswith("OwnRMSNorm (1) does not see the scale"))
    assert "select='2'" in note


class Norm(torch.nn.Module):
    """A layer that does nothing else, under a name that says nothing."""

    def forward(self, x):
        return torch.nn.functional.rms_norm(x, x.shape[-1:])


class Between(torch.nn.Module):
    """A function between two layers."""

    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.nn.functional.layer_norm(self.first(x), (4,)))


@pytest.mark.parametrize(
    ("module", "begins"),
    [
        (
            torch.nn.Sequential(torch.nn.Linear(3, 4), Norm(), torch.nn.Linear(4, 2)),
            "rms_norm (1) does not see the scale",
        ),
        (
            Between(torch.nn.Linear(3, 4)),
            "layer_norm (in the module itself) does not see the scale",
        ),
    ],
)
def test_functions_are_seen_too(module, begins):
    data = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    notes = nst.log_evidence(module, data, prior_precision=1.0).notes
    (note,) = (n for n in notes if "does not see the scale" in n)
    assert note.startswith(begins)
    last = "2" if isinstance(module, torch.nn.Sequential) else "last"
    assert f"select={last!r}, which comes after it" in note
    clean = nst.log_evidence(module, data, prior_precision=1.0, select=last).notes
    assert not any("scale" in n for n in clean)
