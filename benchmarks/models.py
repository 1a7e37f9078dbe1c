"""The modules that the PyTorch benchmarks share, as people write them."""

import torch
from torch import nn
from torch.nn import functional


def mlp() -> nn.Module:
    """The paper's network, 784-800-10: 636,010 parameters."""
    return nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 10))


def softmax() -> nn.Module:
    """Softmax regression: 7,850 parameters."""
    return nn.Linear(784, 10)


def cnn() -> nn.Module:
    """Two convolutions and two linear layers on 28 x 28 images: 49,575 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 23),
        nn.ReLU(),
        nn.Linear(23, 10),
    )


class Block(nn.Module):
    """Attention and a perceptron, each after a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, T, d = x.shape
        heads = self.qkv(self.norm1(x)).reshape(n, T, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (n, heads, T, d / heads) each
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, T, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A character model: logits of the next character at every place."""

    def __init__(
        self, characters: int = 65, length: int = 32, width: int = 96, depth: int = 3
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(characters, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """So many of MNIST, flat."""
    from noisescale.data import load_mnist

    data = load_mnist().subset(n_train=n, seed=0)
    return torch.tensor(data.x_train), torch.tensor(data.y_train, dtype=torch.long)


def characters(n: int, length: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of the prose that Python's own help consists of, and the characters that follow."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    common = sorted(sorted(set(text), key=lambda c: (-text.count(c), c))[:64])
    codes = torch.tensor([common.index(c) + 1 if c in common else 0 for c in text])
    starts = torch.randperm(len(codes) - length - 1, generator=torch.manual_seed(0))[:n]
    windows = torch.stack([codes[s : s + length + 1] for s in starts])
    return windows[:, :-1], windows[:, 1:]


def trained(module: nn.Module, data: tuple, *, prior: float, steps: int = 1_500) -> nn.Module:
    """Adam on the regularised cost, all of it at once where it is small."""
    x, y = data
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        batch = torch.randint(len(y), (min(len(y), 64),), generator=generator)
        outputs = module(x[batch])
        nll = functional.cross_entropy(outputs.flatten(0, -2), y[batch].flatten(), reduction="sum")
        penalty = 0.5 * prior * sum((p**2).sum() for p in module.parameters())
        optimiser.zero_grad()
        (nll / len(batch) + penalty / len(y)).backward()
        optimiser.step()
    return module


MODELS = {
    "cnn": (cnn, images),
    "mlp": (mlp, images),
    "gpt": (GPT, characters),
    "softmax": (softmax, images),
}
