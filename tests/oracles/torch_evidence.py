"""Brute force for PyTorch modules: whole Jacobians and Hessians by plain autograd, in float64.

Nothing of ``torch.func`` or of noisescale: one example at a time, one output at a time, the module
called as users call it. Only for what has a few hundred parameters.
"""

import copy
from collections import Counter

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


def take(x, i=None):
    """Example i as a batch of one, or all of them, real numbers in float64."""
    if isinstance(x, dict):
        return {name: take(part, i) for name, part in x.items()}
    if isinstance(x, tuple):
        return tuple(take(part, i) for part in x)
    rows = x if i is None else x[i : i + 1]
    return rows.double() if rows.is_floating_point() else rows


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
        self.ggn = np.zeros((p, p))
        for i in range(len(y)):
            outputs = call(twin, take(x, i))[0]
            value = nll(outputs, y[i])
            self.nll += float(value.detach())
            self.gradients.append(row_of(value, params))
            J = np.stack([row_of(f, params) for f in outputs.reshape(-1)])  # (C, p)
            z = outputs.detach()
            Lambda = torch.autograd.functional.hessian(lambda z, i=i: nll(z, y[i]), z)
            self.ggn += J.T @ Lambda.reshape(len(J), len(J)).numpy() @ J
        self.gradients = np.stack(self.gradients)
        if hessian:  # of all examples at once: as exact, and fewer steps
            with sdpa_kernel(SDPBackend.MATH):  # the only one that differentiates twice
                outputs = call(twin, take(x))
            total = sum(nll(z, y[i]) for i, z in enumerate(outputs))
            slope = flat_gradient(total, params, create_graph=True)
            self.hessian = np.stack([row_of(s, params) for s in slope])

    def log_evidence(self, L, curvature="ggn"):
        """With the paper's restricted sum over non-negative curvatures."""
        L = np.broadcast_to(L, self.w.shape)
        H = self.ggn if curvature == "ggn" else self.hessian
        mu = np.linalg.eigvalsh((H + H.T) / 2 / np.sqrt(np.outer(L, L)))
        return -self.nll - 0.5 * (L * self.w**2).sum() - 0.5 * np.log1p(mu[mu > 0]).sum()

    def trace(self):
        """tr S of the per-example gradients."""
        return ((self.gradients - self.gradients.mean(0)) ** 2).sum() / (len(self.gradients) - 1)


def kfac(module, x, y, nll, prior, truth):
    """-1/2 ln|I + H/prior| of KFAC's H, and the names of what has its diagonal alone.

    A weight that one Linear or convolution alone holds, and that is used by calling it, has the
    block B x A: A the mean of a a' over examples and positions, B = sum J' Lambda J with J the
    Jacobian of an example's outputs in the layer's at one position. Its bias has B.
    """
    twin = copy.deepcopy(module).double().eval()
    held = Counter(id(p) for part in twin.modules() for p in part.parameters(recurse=False))
    layers = {
        path: part
        for path, part in twin.named_modules()
        if type(part).__name__ in ("Linear", "Conv2d", "Conv1D")
        if part.weight.requires_grad and held[id(part.weight)] == 1
    }
    uses, sums = {}, {}  # the latest a and z; sums of a a' and b b', and how many a there were
    for path, part in layers.items():

        def keep(part, args, z, path=path):
            uses[path] = args[0], z
            return z.clone()  # so that an operation in place leaves z alone

        part.register_forward_hook(keep)
    for i in range(len(y)):
        z = call(twin, take(x, i))[0]
        Lambda = torch.autograd.functional.hessian(lambda z, i=i: nll(z, y[i]), z.detach())
        C = z.numel()
        Lambda = Lambda.reshape(C, C).numpy()
        for path, (a, out) in uses.items():
            J = torch.stack(
                [torch.autograd.grad(f, out, retain_graph=True)[0] for f in z.reshape(-1)]
            )
            if type(layers[path]).__name__ == "Conv2d":
                sizes = ("kernel_size", "dilation", "padding", "stride")
                a = functional.unfold(a, *(getattr(layers[path], name) for name in sizes)).mT
                J = J.flatten(3).mT
            a = a.detach().reshape(-1, a.shape[-1]).numpy()
            J = J.reshape(C, -1, J.shape[-1]).numpy()  # (C, T, o)
            A, B, n = sums.get(path, (0, 0, 0))
            B = B + np.einsum("cto,cd,dtp->op", J, Lambda, J)
            sums[path] = A + a.T @ a, B, n + len(a)
    total, covered = 0.0, set()
    for path, (A, B, n) in sums.items():
        blocks = {"weight": np.kron(B, A / n)}
        if layers[path].bias is not None:
            blocks["bias"] = B
        for local, H in blocks.items():
            total -= 0.5 * np.linalg.slogdet(np.eye(len(H)) + H / prior)[1]
            covered.add(f"{path}.{local}")
    ends = np.cumsum([truth.sizes[name] for name in truth.names])
    rest = [name for name in truth.names if name not in covered]
    for name, h in zip(truth.names, np.split(np.diag(truth.ggn), ends[:-1]), strict=True):
        if name in rest:
            total -= 0.5 * np.log1p(h / prior).sum()
    return total, tuple(rest)


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
