"""Boxes: torchvision's FCOS as a source, a model and a task of your own (docs/adapt.md).

Copy it to project/. It reads YOLO's folders: `images/train/NAME.jpg` has `labels/train/NAME.txt`,
or, as Roboflow exports it, `train/images/NAME.jpg` has `train/labels/NAME.txt`; the same for `val`
or `valid`. A line is a box: the number of the class, then the center's x and y, the width and the
height as shares of the image's. `data.yaml` names the classes; without it, `classes.txt` names one
per line. The task also says what `make predict`, the server and the report make of the outputs.
"""

# ruff: noqa: ARG002 - every task has these arguments

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import yaml
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import batched_nms, box_iou
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.folder import is_image
from entry_point.data.sources.source import FileSource, Source
from entry_point.training.tasks.task import Metric, Size, Table, Task

MOST = 100
"""Boxes of an image; of others, the target says that there are none."""
LEAST_SHOWN = 0.25
"""Share of a box that a crop must show for the box to count."""
STRIDES = (8, 16, 32, 64, 128)
COLORS = ("#e53e3e", "#3182ce", "#38a169", "#d69e2e", "#805ad5")


class BoxSource(FileSource):
    """A sample's target: float32 `(MOST, 5)`: class, left, top, right, bottom in its pixels; -1 in
    rows without a box."""

    def __init__(self, root: Path, split: str) -> None:
        names = ("val", "valid") if split == "val" else (split,)
        places = [place for name in names for place in (f"images/{name}", f"{name}/images")]
        found = next((place for place in places if (root / place).is_dir()), None)
        if found is None:
            raise DataError(f"{root} must have one of the folders {', '.join(places)}")
        self._images, self._labels = root / found, root / found.replace("images", "labels")
        files = sorted(file for file in self._images.rglob("*") if is_image(file.name))
        super().__init__(files, [0] * len(files), class_names(root), "targets")

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        whole = torch.full((len(indices), MOST, 5), -1.0)
        for i, index in enumerate(indices):
            rows = self._shown(int(index), geometry, i)
            whole[i, : len(rows)] = torch.from_numpy(rows)
        return whole

    def _shown(self, index: int, geometry: Geometry, i: int) -> np.ndarray:
        file = self._labels / Path(self.file(index)).relative_to(self._images).with_suffix(".txt")
        text = file.read_text() if file.is_file() else ""  # an image without boxes
        kind, x, y, wide, tall = np.array(text.split(), float).reshape(-1, 5).T
        top, left, height, width = geometry.boxes[i]
        across = np.stack([x - wide / 2, x + wide / 2], 1) * geometry.widths[i] - left
        down = np.stack([y - tall / 2, y + tall / 2], 1) * geometry.heights[i] - top
        area = np.diff(across)[:, 0] * np.diff(down)[:, 0]
        across, down = across.clip(0, width), down.clip(0, height)
        shown = np.diff(across)[:, 0] * np.diff(down)[:, 0] >= LEAST_SHOWN * area
        if geometry.flips[i]:
            across = (width - across)[:, ::-1]
        across, down = across * (geometry.side / width), down * (geometry.side / height)
        corners = [kind, across[:, 0], down[:, 0], across[:, 1], down[:, 1]]
        return np.stack(corners, 1)[shown][:MOST].astype(np.float32)


def class_names(root: Path) -> list[str]:
    if not (root / "data.yaml").is_file():
        return (root / "classes.txt").read_text().splitlines()
    names = yaml.safe_load((root / "data.yaml").read_text())["names"]
    return [names[number] for number in sorted(names)] if isinstance(names, dict) else names


class Detector(nn.Module):
    """Images -> for each of its points: the classes' logits, the box, the centerness, and the
    anchor, float32 `(N, points, classes + 9)`."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        backbone = resnet_fpn_backbone(
            backbone_name="resnet18",
            weights=None,
            norm_layer=nn.BatchNorm2d,
            trainable_layers=5,
            returned_layers=[2, 3, 4],
            extra_blocks=LastLevelP6P7(256, 256),
        )
        self.fcos = FCOS(backbone, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = list(self.fcos.backbone(images).values())
        heads = self.fcos.head(maps)
        sizes = [(images.shape[-2], images.shape[-1])] * len(images)
        anchors = torch.stack(self.fcos.anchor_generator(ImageList(images, sizes), maps))
        return torch.cat([*(head.float() for head in heads.values()), anchors], 2)


class Boxes(Task):
    """Scores are the loss, the boxes that were found, and all boxes of the image."""

    takes = "targets"
    blends = ()
    metrics = (Metric("found", "boxes found", percent=True),)

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        if config.data.crop != "squash":
            message = "boxes are answered in pixels of the whole image; set squash"
            raise ConfigError("data.crop", config.data.crop, message)
        self.names, self.outputs = list(train.classes), len(train.classes)
        self.colors = [COLORS[kind % len(COLORS)] for kind in range(self.outputs)]
        self.head, self._side = nn.Identity(), config.data.image_size
        nothing = nn.Identity()
        nothing.out_channels = 32  # type: ignore[assignment]
        self._rules = FCOS(nothing, self.outputs)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        *heads, anchors = outputs.split([self.outputs, 4, 1, 4], 2)
        wanted = [
            {"boxes": rows[:, 1:], "labels": rows[:, 0].long()}
            for rows in (target[target[:, 0] >= 0] for target in targets)
        ]
        strides = anchors[0, :, 2] - anchors[0, :, 0]
        points = [int((strides == stride).sum()) for stride in STRIDES]
        names = ("cls_logits", "bbox_regression", "bbox_ctrness")
        found = self._rules.compute_loss(
            wanted, dict(zip(names, heads, strict=True)), list(anchors), points
        )
        return torch.stack(list(found.values())).sum()

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        rows = []
        for output, target in zip(outputs, targets, strict=True):
            boxes, kinds, _ = detections(output)
            wanted = target[target[:, 0] >= 0]
            hits = box_iou(wanted[:, 1:], boxes) > 0.5
            hits &= wanted[:, :1] == kinds
            loss = self.loss(output[None], target[None])
            rows.append(torch.stack([loss, hits.any(1).sum(), torch.tensor(len(wanted))]))
        return torch.stack(rows).double()

    def measure(self, scores: Tensor) -> dict[str, float]:
        return {"found": float(scores[:, 1].sum() / scores[:, 2].sum())}

    def tables(self, scores: Tensor) -> list[Table]:
        return []

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        missed = scores[:, 2] - scores[:, 1]
        worst = missed.argsort(descending=True, stable=True)[:most].tolist()
        return [(row, f"{int(missed[row])} of {int(scores[row, 2])} missed") for row in worst]

    def draw(self, image: Image.Image, target: Tensor, side: int) -> Image.Image:
        """Returns the report's pictures: a frame for each box, in the color of its class."""
        drawn, scale = image.copy(), torch.tensor([image.width, image.height] * 2) / side
        for kind, *box in torch.cat([target[:, :1], target[:, 1:] * scale], 1).tolist():
            if kind >= 0:
                ImageDraw.Draw(drawn).rectangle(box, outline=self.colors[int(kind)], width=2)
        return drawn

    def answered(self, output: Tensor, target: Tensor) -> Tensor:
        boxes, kinds, _ = detections(output)
        return torch.cat([kinds[:, None].float(), boxes], 1)

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:
        """Returns what the server answers: boxes as left, top, right, bottom in pixels of the
        image."""
        height, width = size
        boxes, kinds, scores = detections(answer)
        shares = (boxes / self._side).clamp(0, 1)
        boxes = (shares * torch.tensor([width, height] * 2)).round(decimals=1)
        found = zip(kinds.tolist(), scores.tolist(), boxes.tolist(), strict=True)
        return {
            "boxes": [
                {"class": self.names[kind], "score": round(score, 4), "box": box}
                for kind, score, box in found
            ]
        }

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:
        """Returns what `make predict` writes: the same as a list for each image."""
        pairs = zip(answers, sizes, strict=True)
        found = {"boxes": [self.describe(*pair, None)["boxes"] for pair in pairs]}
        place = pl.Array(pl.Float32, 4)
        box = pl.Struct({"class": pl.String(), "score": pl.Float32(), "box": place})
        return pl.DataFrame(found, {"boxes": pl.List(box)})


def detections(output: Tensor, least: float = 0.2) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes `(D, 4)`, classes `(D,)` and scores `(D,)` of one image's output, in the pixels of the
    sample: with data.crop=squash, multiply by the image's width and height / image_size."""
    logits, box, centerness, anchors = output.split([output.shape[1] - 9, 4, 1, 4], 1)
    scores, kinds = (logits.sigmoid() * centerness.sigmoid()).sqrt().max(1)
    likely = scores >= least
    place, size = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:3] - anchors[:, :1]
    boxes = torch.cat([place - box[:, :2] * size, place + box[:, 2:] * size], 1)
    boxes, kinds, scores = boxes[likely], kinds[likely], scores[likely]
    kept = batched_nms(boxes, scores, kinds, 0.6)
    return boxes[kept], kinds[kept], scores[kept]
