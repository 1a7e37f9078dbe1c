"""Small modules of the kinds that people train, with data that fit them."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Animal:
    """A module, its inputs and targets, and the likelihood that they go with."""

    module: nn.Module
    x: Any
    y: torch.Tensor
    likelihood: str = "categorical"

    @property
    def data(self):
        return {**self.x, "labels": self.y} if isinstance(self.x, dict) else (self.x, self.y)


class Nested(nn.Module):
    """A bare parameter beside a submodule that has one of its own."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 3)
            self.scale = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return torch.tanh(self.lin(x)) * self.scale

    def __init__(self):
        super().__init__()
        self.block = Nested.Block()
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.block(x) + self.shift


class ConvNet(nn.Module):
    """A convolution with batch normalisation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(2 * 4, 3)

    def forward(self, x):
        h = functional.avg_pool2d(torch.tanh(self.norm(self.conv(x))), 2)
        return self.head(h.flatten(1))


class ResNet(nn.Module):
    """A residual block of two convolutions with group normalisation, and a strided shortcut."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 2, 3, stride=2, padding=1, bias=False)
        self.norm = nn.GroupNorm(1, 2)
        self.b = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.short = nn.Conv2d(2, 2, 1, stride=2)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        h = self.short(x) + self.b(functional.silu(self.norm(self.a(x))))
        return self.head(functional.silu(h).mean(dim=(2, 3)))


class Vit(nn.Module):
    """Patches, a class token, ``nn.TransformerEncoderLayer``."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 4, 2, stride=2)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, 4))
        self.place = nn.Parameter(0.1 * torch.randn(1, 5, 4))
        layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)  # (B, 4, 4)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], dim=1) + self.place
        return self.head(self.encoder(h)[:, 0])


class Gpt(nn.Module):
    """Characters, causal attention by ``scaled_dot_product_attention``, the embedding tied."""

    def __init__(self, vocabulary=4, width=4, context=5):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.1 * torch.randn(context, width))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        h = self.embed(tokens) + self.place[: tokens.shape[1]]
        B, T, D = h.shape
        q, k, v = (
            part.reshape(B, T, 2, D // 2).transpose(1, 2)
            for part in self.qkv(self.norm(h)).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(h + self.out(mixed.transpose(1, 2).reshape(B, T, D)))


class Lstm(nn.Module):
    """Two outputs, of which the first are logits."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.rnn = nn.LSTM(2, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.head(h[:, -1]), h


class Recurrent(nn.Module):
    """GRU and RNN, their layers first in time."""

    def __init__(self):
        super().__init__()
        self.gru, self.rnn = nn.GRU(3, 3), nn.RNN(3, 2)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        h, _ = self.gru(x.transpose(0, 1))
        return {"logits": self.head(self.rnn(h)[0][-1]), "loss": None}


class LoraLinear(nn.Module):
    """A frozen layer with a trained update of low rank."""

    def __init__(self, base, rank=1, alpha=2.0):
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(0.3 * torch.randn(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.T) @ self.b.T


class Attention(nn.Module):
    """``nn.MultiheadAttention`` over two inputs."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x, context):
        return self.head(self.mix(x, context, context, need_weights=False)[0].mean(dim=1))


def hugging_face_classifier():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        **sizes, intermediate_size=4, max_position_embeddings=5, type_vocab_size=1, num_labels=3
    )
    return BertForSequenceClassification(config)


def hugging_face_gpt():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=4,
        n_positions=5,
        n_embd=4,
        n_layer=1,
        n_head=2,
        n_inner=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def animal(name, n=4):
    """One by name, always the same."""
    torch.manual_seed(7)
    labels = torch.arange(n) % 3
    tokens = torch.randint(4, (n, 5))
    if name == "mlp":
        module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
        return Animal(module, torch.randn(n, 4), labels)
    if name == "nested":
        return Animal(Nested(), torch.randn(n, 4), labels)
    if name == "cnn":
        module, x = ConvNet(), torch.randn(n, 1, 4, 4)
        module.train()(torch.randn(32, 1, 4, 4))  # running statistics of its own
        return Animal(module, x, labels)
    if name == "resnet":
        return Animal(ResNet(), torch.randn(n, 2, 4, 4), labels)
    if name == "vit":
        return Animal(Vit(), torch.randn(n, 1, 4, 4), labels)
    if name == "gpt":
        y = torch.cat([tokens[:, 1:], torch.full((n, 1), -100)], dim=1)
        return Animal(Gpt(), tokens, y)
    if name == "lstm":
        return Animal(Lstm(), tokens, labels)
    if name == "recurrent":
        return Animal(Recurrent(), torch.randn(n, 4, 3), labels)
    if name == "lora":
        module = nn.Sequential(LoraLinear(nn.Linear(4, 3)), nn.Tanh(), LoraLinear(nn.Linear(3, 3)))
        return Animal(module, torch.randn(n, 4), labels)
    if name == "attention":
        return Animal(Attention(), (torch.randn(n, 2, 4), torch.randn(n, 3, 4)), labels)
    if name == "bert":
        mask = torch.ones(n, 5, dtype=torch.long)
        mask[0, 3:] = 0
        x = {"input_ids": tokens, "attention_mask": mask}
        return Animal(hugging_face_classifier(), x, labels)
    if name == "hf gpt":
        return Animal(hugging_face_gpt(), {"input_ids": tokens}, tokens)
    if name == "regression":
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
        return Animal(module, torch.randn(n, 3), torch.randn(n, 2), "gaussian")
    if name == "binary":
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        return Animal(
            module, torch.randn(n, 3), (torch.arange(n) % 2).float()[:, None], "bernoulli"
        )
    if name == "counts":
        module = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
        return Animal(module, torch.randn(n, 3), torch.arange(n)[:, None], "poisson")
    raise KeyError(name)


NAMES = (
    "mlp",
    "nested",
    "cnn",
    "resnet",
    "vit",
    "gpt",
    "lstm",
    "recurrent",
    "lora",
    "attention",
    "bert",
    "hf gpt",
    "regression",
    "binary",
    "counts",
)
