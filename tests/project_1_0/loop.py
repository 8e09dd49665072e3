import os
from pathlib import Path

from torch import nn, optim

from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from project.models import small_net

data = DataConfig(format="folder", root=os.environ["PHOTOS"])
photos = open_source(data, "train", Path())
model = small_net(len(photos.classes))
optimizer = optim.SGD(model.parameters(), lr=0.01)
for batch in build_loader(photos, LoaderSpec(data, PipelineConfig(), "train", 16, 0)).epoch(0):
    nn.functional.cross_entropy(model(batch.images / 255), batch.labels).backward()
    optimizer.step()
    optimizer.zero_grad()
