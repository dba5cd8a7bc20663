"""The geography of the twin: continents, mountains, and random textures of soil, roughness and sea temperature.

Coastlines are polygons with few corners, which suffices for weather at a resolution of 600 km.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from data_pipeline.synthetic.twin.noise import NoisePurpose, normal_noise
from data_pipeline.synthetic.twin.sphere import Sphere, resize

CONTINENTS = {
    "North America": (
        (-168, 66), (-130, 70), (-95, 72), (-80, 73), (-62, 60), (-56, 52), (-66, 44), (-75, 38),
        (-81, 30), (-83, 28), (-97, 28), (-97, 20), (-88, 20), (-84, 10), (-79, 8), (-95, 15), (-106, 22),
        (-117, 33), (-124, 42), (-124, 48), (-135, 58), (-152, 60), (-162, 56),
    ),
    "Greenland": ((-55, 82), (-20, 82), (-22, 70), (-44, 60), (-54, 70)),
    "South America": (
        (-78, 8), (-62, 10), (-50, 1), (-35, -6), (-39, -15), (-48, -27), (-58, -38), (-66, -46),
        (-69, -54), (-75, -50), (-71, -30), (-71, -18), (-81, -5),
    ),
    "Africa": (
        (-17, 14), (-10, 30), (-5, 35), (10, 37), (20, 32), (32, 31), (37, 22), (43, 12), (51, 12),
        (40, -4), (40, -15), (33, -27), (20, -35), (12, -18), (9, 2), (-8, 5),
    ),
    "Eurasia": (
        (-9, 37), (-9, 43), (-2, 47), (3, 51), (8, 57), (5, 60), (12, 66), (25, 71), (45, 68), (70, 73),
        (105, 77), (140, 73), (179, 69), (179, 64), (162, 57), (155, 52), (142, 60), (136, 53), (140, 45),
        (128, 39), (122, 39), (121, 30), (109, 20), (107, 10), (103, 2), (98, 10), (92, 21), (87, 20),
        (80, 8), (73, 18), (66, 25), (57, 26), (59, 21), (45, 13), (39, 21), (35, 31), (28, 37), (23, 37),
        (14, 41), (3, 42), (-2, 37),
    ),
    "Australia": (
        (114, -22), (130, -12), (142, -11), (153, -26), (148, -38), (138, -35), (124, -33), (115, -34),
    ),
    "Indonesia": ((96, 4), (105, 0), (118, 6), (119, -3), (140, -4), (148, -9), (120, -9), (104, -6)),
    "Antarctica": (
        (-180, -72), (-120, -74), (-75, -70), (-60, -64), (-58, -76), (-20, -74), (30, -69), (90, -66),
        (150, -68), (180, -72), (180, -91), (-180, -91),
    ),
}  # fmt: skip
"""Corners (longitude, latitude) in degrees."""

MOUNTAINS = {
    "Tibet": (33, 88, 4700, 6, 14), "Altai": (46, 98, 1600, 6, 12), "Iran": (33, 56, 1300, 6, 10),
    "Rocky Mountains": (45, -112, 2000, 13, 8), "Yukon": (62, -135, 1200, 8, 12),
    "Altiplano": (-15, -69, 3300, 12, 5), "Southern Andes": (-33, -70, 2400, 9, 4),
    "Greenland": (72, -40, 2600, 8, 11), "East Antarctica": (-84, 80, 3000, 9, 70),
    "West Antarctica": (-78, -110, 1600, 6, 40), "Ethiopia": (8, 38, 1700, 9, 6),
    "Drakensberg": (-25, 26, 1100, 8, 7), "Alps": (46, 10, 1100, 4, 8), "Scandes": (63, 12, 900, 7, 5),
    "Yakutia": (64, 128, 700, 8, 15), "Brazil": (-20, -46, 600, 9, 7), "Mexico": (21, -101, 1500, 5, 5),
    "Caucasus": (40, 42, 1500, 4, 6), "Tibesti": (23, 6, 700, 6, 9),
}  # fmt: skip
"""Gaussian hills: latitude, longitude, height in m, width in degrees of latitude, width in degrees of longitude."""

TEXTURE_TRUNCATION = 31
"""Textures are drawn up to this degree, so that they agree at all lower truncations."""


class Earth:
    """Fields that do not change with time, (W, H, 1) on the Gaussian grid of a sphere."""

    def __init__(self, sphere: Sphere) -> None:
        def field(values: np.ndarray) -> Tensor:
            return torch.tensor(values, dtype=sphere.mu.dtype)[:, :, None]

        land = land_fraction(sphere.longitudes, sphere.latitudes)
        self.land = field(land)
        """Fraction of land, 0 to 1."""
        self.height = field(land * mountains(sphere.longitudes, sphere.latitudes))
        """Height of the surface, m."""
        self.roughness = _texture(sphere, 8, 21, number=0)
        """Texture of the drag over land, standard deviation 1."""
        self.soil = _texture(sphere, 8, 21, number=1)
        """Texture of the soil, standard deviation 1."""
        self.sea = 1.5 * _texture(sphere, 3, 10, number=2)
        """Sea temperature minus its mean at the same latitude, from currents and upwelling, K."""


def land_fraction(longitudes: np.ndarray, latitudes: np.ndarray) -> np.ndarray:
    """Return the fraction of land in each cell, (W, H), sampled at nine points."""
    offsets = np.array([-1, 0, 1]) / 3
    hits = np.zeros((len(longitudes), len(latitudes)))
    for east in offsets * 360 / len(longitudes):
        for north in offsets * 180 / len(latitudes):
            lon = ((longitudes + 180) % 360 - 180 + east)[:, None]
            lat = (latitudes + north)[None, :]
            hits += np.any([_inside(lon, lat, corners) for corners in CONTINENTS.values()], axis=0)
    return hits / 9


def mountains(longitudes: np.ndarray, latitudes: np.ndarray) -> np.ndarray:
    """Return the sum of the heights of all mountains, (W, H), m."""
    height = np.zeros((len(longitudes), len(latitudes)))
    for lat, lon, top, north_south, east_west in MOUNTAINS.values():
        east = ((longitudes - lon + 180) % 360 - 180)[:, None] / east_west
        north = (latitudes - lat)[None, :] / north_south
        height += top * np.exp(-(east**2) - north**2)
    return height


def _inside(lon: np.ndarray, lat: np.ndarray, corners: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Return whether points lie in a polygon: if so, a ray to the east crosses its edges an odd number of times."""
    inside = np.zeros(np.broadcast_shapes(lon.shape, lat.shape), dtype=bool)
    for (lon1, lat1), (lon2, lat2) in zip(corners, corners[1:] + corners[:1], strict=True):
        if lat1 != lat2:
            crossing = lon1 + (lon2 - lon1) * (lat - lat1) / (lat2 - lat1)
            inside ^= ((lat1 > lat) != (lat2 > lat)) & (lon < crossing)
    return inside


def _texture(sphere: Sphere, lowest: int, highest: int, number: int) -> Tensor:
    """Return a random field (W, H, 1) with degrees from `lowest` to `highest` and standard deviation 1."""
    N = TEXTURE_TRUNCATION + 1
    degree = torch.arange(N)
    band = (degree >= lowest) & (degree <= highest)
    noise = normal_noise((2 * N, N, 1), 0, NoisePurpose.EARTH, member=number)
    noise = noise * torch.sqrt(band / (2 * degree + 1))[:, None]
    field = sphere.to_grid(resize(noise.to(sphere.mu.dtype), sphere.truncation) * sphere.mask[..., 0])
    return field / field.std()
