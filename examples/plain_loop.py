"""A plain training loop over this project's loader.

python -m examples.plain_loop data/demo
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec


def main(root: str, epochs: str = "1") -> None:
    data = DataConfig(format="folder", root=root)
    source = open_source(data, "train", Path())
    loader = build_loader(
        source, LoaderSpec(data, PipelineConfig(), "train", batch_size=16, seed=0)
    )
    model = resnet18(num_classes=len(source.classes)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in data.normalization)
    for epoch in range(int(epochs)):
        for batch in loader.epoch(epoch):  # uint8 images, the same on every run
            loss = cross_entropy(model((batch.images - mean) / std), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sys.stdout.write(f"epoch {epoch} loss {loss.item():.3f}\n")
    loader.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
