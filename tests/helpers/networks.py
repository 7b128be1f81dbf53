"""Small networks that cover the layers of common classifiers, and functions with missing derivatives."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.b(functional.relu(self.norm(self.a(x)))))


class ViT(nn.Module):
    """Patches of 4x4, one `nn.TransformerEncoderLayer`, mean over patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(2, 8, 4, stride=4)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, activation="gelu")
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.patch(x).flatten(2).mT).mean(1))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )


def dropout() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3)
    )


def residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def smooth() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


class SquareWithoutForwardMode(torch.autograd.Function):
    """x² without a forward-mode derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, upstream):
        return 2 * ctx.saved_tensors[0] * upstream


class SquareOnceDifferentiable(SquareWithoutForwardMode):
    """x² without forward-mode and second derivatives."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        return 2 * ctx.saved_tensors[0] * upstream


class FunctionNet(nn.Module):
    """A custom autograd function between two linear layers."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(128, 4), nn.Linear(4, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function.apply(self.first(x.flatten(1))))


NETWORKS = {"conv": conv, "dropout": dropout, "residual": residual, "mlp": mlp, "vit": ViT}


def make(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {**NETWORKS, "smooth": smooth}[name]().double()
