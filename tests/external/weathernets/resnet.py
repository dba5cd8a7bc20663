"""A small residual network as in image libraries, without code for forecasts, grids or distributions."""

from torch import nn


class ResNet(nn.Module):
    """(B, in_channels, H, W) to (B, width, H, W) by `blocks` residual blocks."""

    def __init__(self, in_channels, width=8, blocks=2):
        super().__init__()
        self.stem = nn.Conv2d(in_channels, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
            )
            for _ in range(blocks)
        )  # fmt: skip

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = (x + block(x)).relu()
        return x


def resnet(in_channels, **options):
    """Return a `ResNet`: some libraries have functions beside classes."""
    return ResNet(in_channels, **options)
