"""One published round of DP-Fed-WAE as somebody would write it with PyTorch: the same update of every client as ours.

Ten clients with two records of 124 binary columns each train a dense autoencoder (18,188 parameters) for ten full-batch epochs
of Adam, choose one coordinate and one sign by SignDS, and the server adds the mean of what they tell.

`ClientLoop`         one client after the other, by autograd and `torch.optim.Adam`
`FunctionalClients`  all clients at once, by `torch.func.vmap` of `torch.func.grad`, with Adam by hand
"""

from __future__ import annotations

import math
from typing import Any

import torch

from populace.methods.blocks.networks import Shapes
from populace.privacy.randomizers.signds import SignDS

Layers = dict[str, torch.Tensor]


def unpacked(shapes: Shapes, theta: torch.Tensor) -> Layers:
    """The layers that a flat vector holds, in the order of ours."""
    parts = torch.split(theta, [math.prod(shape) for _, shape in shapes])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)}


def packed(shapes: Shapes, layers: Layers, lead: tuple[int, ...] = ()) -> torch.Tensor:
    """The flat vector of layers, after leading axes that they share."""
    return torch.cat([layers[name].reshape(*lead, -1) for name, _ in shapes], dim=-1)


def loss(layers: Layers, x: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy averaged over outputs and records, plus the MMD of equation 4: two records, all there."""
    codes = torch.relu(x @ layers["in"] + layers["in_bias"]) @ layers["code"] + layers["code_bias"]
    logits = torch.relu(codes @ layers["up"] + layers["up_bias"]) @ layers["out"] + layers["out_bias"]
    entropy = (torch.nn.functional.softplus(logits) - x * logits).mean()
    return entropy + discrepancy(prior, codes)


def discrepancy(prior: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The MMD with the inverse multiquadric kernel, kappa = 2 d_z."""
    records, latent = codes.shape
    kappa = 2.0 * latent

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return kappa / (kappa + ((a[:, None, :] - b[None, :, :]) ** 2).sum(dim=-1))

    others = 1 - torch.eye(records, dtype=codes.dtype)
    within = (others * (kernel(prior, prior) + kernel(codes, codes))).sum() / (records * (records - 1))
    return within - 2 * kernel(prior, codes).mean()


class ClientLoop:
    """One client after the other."""

    name = "PyTorch client loop"

    def __init__(self, shapes: Shapes, mechanism: SignDS, *, epochs: int, learning_rate: float) -> None:
        self.shapes, self.mechanism, self.epochs, self.learning_rate = shapes, mechanism, epochs, learning_rate

    def update(self, theta: torch.Tensor, x: torch.Tensor, priors: torch.Tensor) -> torch.Tensor:
        """What one client's training changes; `priors` are the latents of each epoch."""
        layers = {name: part.clone().requires_grad_() for name, part in unpacked(self.shapes, theta).items()}
        optimizer = torch.optim.Adam(list(layers.values()), lr=self.learning_rate)
        for epoch in range(self.epochs):
            optimizer.zero_grad()
            loss(layers, x, priors[epoch]).backward()
            optimizer.step()
        return packed(self.shapes, {name: part.detach() for name, part in layers.items()}) - theta

    def updates(self, theta: torch.Tensor, x: torch.Tensor, priors: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.update(theta, *own) for own in zip(x, priors, strict=True)])

    def round(self, theta: torch.Tensor, x: torch.Tensor, latent: int) -> torch.Tensor:
        """The parameters after one round."""
        told = torch.zeros_like(theta)
        for records in x:
            update = self.update(theta, records, torch.randn(self.epochs, len(records), latent))
            sign = 1.0 if torch.rand(()) < 0.5 else -1.0
            told[choose(sign * update, self.mechanism)] += sign
        return theta + told / len(x)


class FunctionalClients:
    """All clients at once."""

    name = "torch.func"

    def __init__(self, shapes: Shapes, mechanism: SignDS, *, epochs: int, learning_rate: float) -> None:
        self.shapes, self.mechanism, self.epochs, self.learning_rate = shapes, mechanism, epochs, learning_rate
        self.gradients = torch.func.vmap(torch.func.grad(loss))

    def updates(self, theta: torch.Tensor, x: torch.Tensor, priors: torch.Tensor) -> torch.Tensor:
        """What training changes at every client, [clients, parameters]."""
        start = unpacked(self.shapes, theta)
        layers = {name: part.expand(len(x), *part.shape).clone() for name, part in start.items()}
        mean = {name: torch.zeros_like(part) for name, part in layers.items()}
        square = {name: torch.zeros_like(part) for name, part in layers.items()}
        first, second, tiny = 0.9, 0.999, 1e-8
        for epoch in range(self.epochs):
            gradient = self.gradients(layers, x, priors[:, epoch])
            for name, part in layers.items():
                mean[name].mul_(first).add_(gradient[name], alpha=1 - first)
                square[name].mul_(second).addcmul_(gradient[name], gradient[name], value=1 - second)
                scale = (square[name] / (1 - second ** (epoch + 1))).sqrt_().add_(tiny)
                part.addcdiv_(mean[name], scale, value=-self.learning_rate / (1 - first ** (epoch + 1)))
        return packed(self.shapes, layers, (len(x),)) - theta

    def round(self, theta: torch.Tensor, x: torch.Tensor, latent: int) -> torch.Tensor:
        """The parameters after one round."""
        updates = self.updates(theta, x, torch.randn(len(x), self.epochs, x.shape[1], latent))
        signs = torch.where(torch.rand(len(x)) < 0.5, 1.0, -1.0)
        told = torch.zeros_like(theta)
        top = torch.topk(signs[:, None] * updates, self.mechanism.chosen, dim=1).indices
        for sign, own in zip(signs, top, strict=True):
            told[choose_from(own, self.mechanism)] += sign
        return theta + told / len(x)


def choose(vector: torch.Tensor, mechanism: SignDS) -> torch.Tensor:
    """SignDS: a coordinate among the top with probability p, else one of the others."""
    return choose_from(torch.topk(vector, mechanism.chosen).indices, mechanism)


def choose_from(top: torch.Tensor, mechanism: SignDS) -> torch.Tensor:
    if torch.rand(()) < mechanism.p:
        return top[torch.randint(len(top), ())]
    others = torch.ones(mechanism.size, dtype=torch.bool)
    others[top] = False
    places = others.nonzero().squeeze(1)
    return places[torch.randint(len(places), ())]


def peers(shapes: Shapes, mechanism: SignDS, **settings: Any) -> list[ClientLoop | FunctionalClients]:
    """Both ways."""
    return [ClientLoop(shapes, mechanism, **settings), FunctionalClients(shapes, mechanism, **settings)]
