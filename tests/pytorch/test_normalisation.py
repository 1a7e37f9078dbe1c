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
