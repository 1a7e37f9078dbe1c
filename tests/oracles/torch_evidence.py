"""Brute force for PyTorch modules: whole Jacobians and Hessians by plain autograd, in float64.

Nothing of ``torch.func`` or of noisescale: one example at a time, one output at a time, the module
called as users call it. Only for what has a few hundred parameters.
"""

import copy

import numpy as np
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


def outputs_of(returned):
    """Logits of whatever a module returns, an example's in one row."""
    returned = getattr(returned, "logits", returned)
    if isinstance(returned, dict):
        returned = returned["logits"]
    if isinstance(returned, (tuple, list)):
        returned = returned[0]
    return returned


def call(module, x):
    if isinstance(x, dict):
        return outputs_of(module(**x))
    return outputs_of(module(*x) if isinstance(x, tuple) else module(x))


def take(x, i):
    """Example i as a batch of one, real numbers in float64."""
    if isinstance(x, dict):
        return {name: take(part, i) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(take(part, i) for part in x)
    row = x[i : i + 1]
    return row.double() if row.is_floating_point() else row


def nll_of(likelihood, ignored=-100, noise=1.0):
    """Nats of one example: ``(outputs (C,) or (T, C), y) -> number``."""

    def categorical(f, y):
        rows, labels = f.reshape(-1, f.shape[-1]), y.reshape(-1)
        return functional.cross_entropy(rows, labels, ignore_index=ignored, reduction="sum")

    def bernoulli(f, y):
        return functional.binary_cross_entropy_with_logits(f.reshape(()), y.double().reshape(()))

    def gaussian(f, y):
        density = torch.distributions.Normal(f.reshape(-1), noise**-0.5)
        return -density.log_prob(y.double().reshape(-1)).sum()

    def poisson(f, y):
        rates, counts = f.exp().reshape(-1), y.double().reshape(-1)
        return -torch.distributions.Poisson(rates).log_prob(counts).sum()

    known = {
        "categorical": categorical,
        "bernoulli": bernoulli,
        "gaussian": gaussian,
        "poisson": poisson,
    }
    return known.get(likelihood, likelihood)


class BruteForce:
    """nll, gradients (N, p), Gauss-Newton matrix and Hessian (p, p) of the summed nll."""

    def __init__(self, module, x, y, nll, chosen=lambda name: True, hessian=True):
        twin = copy.deepcopy(module).double().eval()
        named = {n: p for n, p in twin.named_parameters() if p.requires_grad and chosen(n)}
        self.names = sorted(named)
        params = [named[name] for name in self.names]
        self.sizes = {name: named[name].numel() for name in self.names}
        self.w = np.concatenate([p.detach().numpy().ravel() for p in params])
        p = len(self.w)
        self.nll, self.gradients = 0.0, []
        self.ggn, self.hessian = np.zeros((p, p)), np.zeros((p, p))
        for i in range(len(y)):
            with sdpa_kernel(SDPBackend.MATH):  # the only one that differentiates twice
                outputs = call(twin, take(x, i))[0]
            value = nll(outputs, y[i])
            self.nll += float(value.detach())
            slope = flat_gradient(value, params, create_graph=hessian)
            self.gradients.append(slope.detach().numpy())
            if hessian:
                self.hessian += np.stack([row_of(s, params) for s in slope])
            J = np.stack([row_of(f, params) for f in outputs.reshape(-1)])  # (C, p)
            z = outputs.detach()
            Lambda = torch.autograd.functional.hessian(lambda z, i=i: nll(z, y[i]), z)
            self.ggn += J.T @ Lambda.reshape(len(J), len(J)).numpy() @ J
        self.gradients = np.stack(self.gradients)

    def log_evidence(self, L, curvature="ggn"):
        """With the paper's restricted sum over non-negative curvatures."""
        L = np.broadcast_to(L, self.w.shape)
        H = self.ggn if curvature == "ggn" else self.hessian
        mu = np.linalg.eigvalsh((H + H.T) / 2 / np.sqrt(np.outer(L, L)))
        return -self.nll - 0.5 * (L * self.w**2).sum() - 0.5 * np.log1p(mu[mu > 0]).sum()

    def trace(self):
        """tr S of the per-example gradients."""
        return ((self.gradients - self.gradients.mean(0)) ** 2).sum() / (len(self.gradients) - 1)


def flat_gradient(value, params, create_graph=False):
    parts = torch.autograd.grad(
        value, params, create_graph=create_graph, retain_graph=True, allow_unused=True
    )
    zeros = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, params, strict=True)]
    return torch.cat([part.reshape(-1) for part in zeros])


def row_of(value, params):
    if not value.requires_grad:
        return np.zeros(sum(p.numel() for p in params))
    return flat_gradient(value, params).detach().numpy()
