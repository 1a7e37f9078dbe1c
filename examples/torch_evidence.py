"""Should I believe this PyTorch model? Five kinds of it: python examples/torch_evidence.py.

Each function trains a small model on the data given to it, under a prior of precision lambda, and
returns its evidence. The evidence is that of the training set: nothing is held out. Precisions that
are chosen afterwards, one a layer, leave the parameters where they were: there E is withheld, until
``at="map"`` moves them to the minimum under these precisions.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import noisescale as ns
from noisescale.data import load_digits
from noisescale.torch import log_evidence

PRIOR = 1.0
TEXT = "the cat sat on the mat; the rat ate the hat that the cat sat on; so the cat ate the rat"


def to_the_minimum(module: nn.Module, nll: Callable[[], torch.Tensor], iterations: int) -> None:
    """Minimise the summed nll + PRIOR/2 |w|^2, the cost whose minimum has an evidence."""
    optimizer = torch.optim.LBFGS(
        module.parameters(),
        max_iter=iterations,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def cost() -> torch.Tensor:
        optimizer.zero_grad()
        penalty = sum((p**2).sum() for p in module.parameters())
        total = nll() + 0.5 * PRIOR * penalty
        total.backward()
        return total

    optimizer.step(cost)


def cnn(n_train: int = 100, iterations: int = 200) -> ns.Evidence:
    """A convolutional network on images of digits."""
    digits = load_digits()
    x = torch.tensor(digits.x_train[:n_train]).double()
    y = torch.tensor(digits.y_train[:n_train]).long()
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).double()
    to_the_minimum(
        module, lambda: functional.cross_entropy(module(x), y, reduction="sum"), iterations
    )
    return log_evidence(module, (x, y), prior_precision=PRIOR)


class Gated(nn.Module):
    """A bare parameter beside a layer: a layer of its own, the module's."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(4, 6)
        self.gate = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of three classes."""
        return self.head(torch.tanh(self.mix(x)) * self.gate)


def nested(n_train: int = 60, iterations: int = 300) -> ns.Evidence:
    """Parameters beside submodules, and a prior precision for each layer."""
    torch.manual_seed(0)
    x = torch.randn(n_train, 4, dtype=torch.float64)
    y = (x[:, :3] + 0.3 * torch.randn(n_train, 3)).argmax(1)
    module = nn.Sequential(Gated()).double()
    to_the_minimum(
        module, lambda: functional.cross_entropy(module(x), y, reduction="sum"), iterations
    )
    return log_evidence(module, (x, y), prior_precision="per_layer")


class CharacterModel(nn.Module):
    """One block of causal attention, its embedding shared with its outputs."""

    def __init__(self, vocabulary: int, context: int, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.1 * torch.randn(context, width))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next character after each."""
        h = self.embed(tokens) + self.place[: tokens.shape[1]]
        q, k, v = self.qkv(h).chunk(3, dim=2)
        return self.head(h + functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def characters(context: int = 8, iterations: int = 300) -> ns.Evidence:
    """A character transformer: one example is one sequence, its labels are the next characters."""
    letters = sorted(set(TEXT))
    codes = torch.tensor([letters.index(c) for c in TEXT])
    starts = range(0, len(TEXT) - context, context)
    x = torch.stack([codes[s : s + context] for s in starts])
    y = torch.stack([codes[s + 1 : s + context + 1] for s in starts])
    torch.manual_seed(0)
    module = CharacterModel(len(letters), context).double()
    to_the_minimum(
        module,
        lambda: functional.cross_entropy(module(x).transpose(1, 2), y, reduction="sum"),
        iterations,
    )
    return log_evidence(module, (x, y), prior_precision=PRIOR)


def regression(n_train: int = 80, iterations: int = 300) -> ns.Evidence:
    """Real targets, whose noise is estimated; the null model is the best constant."""
    torch.manual_seed(0)
    x = torch.rand(n_train, 1, dtype=torch.float64) * 6
    y = torch.sin(x) + 0.1 * torch.randn(n_train, 1)
    module = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    noise_precision = 1 / 0.1**2  # what training assumes
    to_the_minimum(module, lambda: 0.5 * noise_precision * ((module(x) - y) ** 2).sum(), iterations)
    return log_evidence(module, (x, y), prior_precision=PRIOR, likelihood=ns.gaussian("estimate"))


def binary(n_train: int = 80, iterations: int = 300) -> ns.Evidence:
    """Two classes, labels 0.0 and 1.0 of shape (N, 1) as ``BCEWithLogitsLoss`` takes them."""
    torch.manual_seed(0)
    x = torch.randn(n_train, 2, dtype=torch.float64)
    y = (x[:, :1] * x[:, 1:] > 0).double()
    module = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    loss = nn.BCEWithLogitsLoss(reduction="sum")
    to_the_minimum(module, lambda: loss(module(x), y), iterations)
    return log_evidence(module, (x, y), prior_precision=PRIOR, likelihood="bernoulli")


EXAMPLES = {f.__name__: f for f in (cnn, nested, characters, regression, binary)}

if __name__ == "__main__":
    for name, example in EXAMPLES.items():
        print(f"{name}: {example()}\n")
