"""GraphNet: message passing on an icosahedral mesh, after GraphCast (Lam et al. 2023, doi:10.1126/science.adi2336)."""

from itertools import combinations

import numpy as np
import torch
from torch import nn

from models.networks.features import Features
from models.networks.head import make_head, zero_convolution


class GraphNet(nn.Module):
    """Each cell sends to its three nearest nodes, nodes exchange messages, and each cell reads its three nodes.

    Nearest nodes exist for every position of a cell, so the model claims `any_grid`. Nodes belong to no tile, so it
    does not claim `tiles`.
    """

    moments_only = any_grid = True

    def __init__(self, task, grid, level=2, width=16, rounds=2, head="normal"):
        super().__init__()
        self.features, self.head = Features(task, grid), make_head(head, task, grid)
        nodes, edges = icosphere(level)
        nearest, weights = neighbours(cells_of(grid), nodes)
        # Computed by numpy, because the constructor must work on torch's `meta` device, and not saved.
        for name, table in {"edges": edges, "nearest": nearest, "weights": weights, "nodes": nodes}.items():
            self.register_buffer(name, torch.from_numpy(table), persistent=False)
        self.encoder = nn.Sequential(nn.Linear(self.features.count, width), nn.GELU())
        self.messages = nn.ModuleList(mlp(2 * width + 3, width) for _ in range(rounds))
        self.updates = nn.ModuleList(mlp(2 * width, width) for _ in range(rounds))
        self.last = zero_convolution(self.features.count + width, self.head.count)

    def fit(self, batches):
        self.features.errors.fit(batches)
        self.head.fit(batches)

    def normalise(self, location, scale):
        self.head.normalise(location, scale)

    def forward(self, sample):
        maps = self.features(sample)
        weights, (sender, receiver) = self.weights.to(maps), self.edges
        arrow = (self.nodes[sender] - self.nodes[receiver]).to(maps).expand(len(maps), -1, -1)
        own = self.encoder(maps.flatten(2).transpose(1, 2))
        x = self._mean((own[:, :, None] * weights[..., None]).flatten(1, 2), self.nearest.flatten(), weights.flatten())
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = message(torch.cat([x[:, sender], x[:, receiver], arrow], dim=2))
            x = x + update(torch.cat([x, self._mean(sent, receiver, torch.ones_like(sent[0, :, 0]))], dim=2))
        read = (x[:, self.nearest] * weights[..., None]).sum(2)
        read = read.transpose(1, 2).unflatten(2, maps.shape[-2:])
        return self.head(self.last(torch.cat([maps, read], dim=1)), sample)

    def _mean(self, values, node, weights):
        """Weighted mean at every node of the values sent to it, 0 without any; (B, E, F) to (B, N, F)."""
        total = values.new_zeros(len(values), len(self.nodes), values.shape[2]).index_add(1, node, values)
        return total / weights.new_zeros(len(self.nodes)).index_add(0, node, weights).clamp(min=1e-6)[:, None]


def mlp(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.GELU(), nn.Linear(outputs, outputs))


def icosphere(level):
    """Return nodes (N, 3) and edges (2, E) of an icosahedron whose triangles are split in four `level` times."""
    golden = (1 + 5**0.5) / 2
    nodes = [[s, t * golden, 0] for s in (-1, 1) for t in (-1, 1)]
    nodes = np.array(nodes + [[0, s, t] for s, t, _ in nodes] + [[t, 0, s] for s, t, _ in nodes])
    nodes /= np.linalg.norm(nodes, axis=1, keepdims=True)
    near = nodes @ nodes.T > 0.4
    triangles = [(i, j, k) for i, j, k in combinations(range(12), 3) if near[i, j] & near[j, k] & near[i, k]]
    for _ in range(level):
        middles, finer = {}, []
        for i, j, k in triangles:
            a, b, c = (
                middles.setdefault(tuple(sorted(pair)), len(nodes) + len(middles)) for pair in ((i, j), (j, k), (i, k))
            )
            finer += [(i, a, c), (j, a, b), (k, b, c), (a, b, c)]
        new = nodes[np.array(list(middles))].sum(1)
        nodes, triangles = np.concatenate([nodes, new / np.linalg.norm(new, axis=1, keepdims=True)]), finer
    pairs = np.array(triangles)[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2)
    return nodes, np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).T.copy()


def cells_of(grid):
    """Return the unit vectors (H W, 3) of the cells."""
    latitude, longitude = np.meshgrid(np.radians(grid.latitudes), np.radians(grid.longitudes), indexing="ij")
    axes = np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)
    return np.stack(axes, -1).reshape(-1, 3)


def neighbours(cells, nodes):
    """Return the three nearest nodes (C, 3) of every cell and their weights: smaller with distance, of sum 1."""
    cosine = cells @ nodes.T
    nearest = np.argpartition(-cosine, 2, axis=1)[:, :3]
    weights = 1 / (0.05 + np.arccos(np.clip(np.take_along_axis(cosine, nearest, 1), -1, 1)))
    return nearest, weights / weights.sum(1, keepdims=True)
