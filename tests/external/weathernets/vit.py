"""ViT: a vision transformer on patches of the grid (Dosovitskiy et al. 2021, arXiv:2010.11929)."""

import torch
from torch import nn

from data_pipeline.common.errors import InputError
from models.networks.features import Features
from models.networks.head import make_head


class ViT(nn.Module):
    """Patches of `patch` rows and columns are tokens of `width` numbers, which all attend to one another.

    Patches must cover the grid exactly, so the model does not claim `any_grid`. Attention needs all patches, so it does
    not claim `tiles`.
    """

    moments_only = True

    def __init__(self, task, grid, patch=(3, 4), width=32, depth=2, heads=4, head="normal"):
        super().__init__()
        patch = tuple(patch)
        if any(cells % size for cells, size in zip(grid.shape, patch, strict=True)):
            raise InputError(f"patches of {patch[0]} x {patch[1]} cells do not cover {grid}; change model.patch")
        self.features, self.head = Features(task, grid), make_head(head, task, grid)
        self.split = nn.Conv2d(self.features.count, width, patch, patch)
        self.place = nn.Parameter(0.02 * torch.randn(width, grid.shape[0] // patch[0], grid.shape[1] // patch[1]))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.join = nn.ConvTranspose2d(width, self.head.count, patch, patch)
        nn.init.zeros_(self.join.weight)  # training starts from the raw ensemble
        nn.init.zeros_(self.join.bias)

    def fit(self, batches):
        self.features.errors.fit(batches)
        self.head.fit(batches)

    def normalise(self, location, scale):
        self.head.normalise(location, scale)

    def forward(self, sample):
        x = self.split(self.features(sample)) + self.place
        x = self.encoder(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[-2:])
        return self.head(self.join(x), sample)
