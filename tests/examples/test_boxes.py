"""The example of boxes: targets that follow the crop, and what its outputs mean."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.tv_tensors import BoundingBoxes

from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Geometry
from examples.boxes import LEAST_SHOWN, Boxes, BoxSource, Detector, detections
from tests.boxed_shapes import write_boxes
from tests.commands import check_dataset

CASES = 300


@pytest.mark.parametrize(
    ("images", "val_name"),
    [
        pytest.param("{}/images", "valid", id="Roboflow"),
        pytest.param("{}/images", "val", id="splits"),
    ],
)
def test_the_layouts_of_others_are_read_as_yolos(
    tmp_path: Path, images: str, val_name: str
) -> None:
    whole = np.array([[0, 0, 120, 160]] * 5)
    sides = np.full(5, 120), np.full(5, 160)
    geometry = Geometry(64, whole, np.zeros(5, bool), *sides)
    yolo = BoxSource(write_boxes(tmp_path / "yolo", train=1, val=5), "val")
    other = write_boxes(tmp_path / "other", train=1, val=5, images=images, val_name=val_name)
    found = BoxSource(other, "val")
    assert len(found) == len(yolo) == 5 and found.classes == yolo.classes == ["blue", "red"]
    assert torch.equal(*(each.targets(np.arange(5), geometry) for each in (yolo, found)))


def test_boxes_are_those_of_torchvision_for_the_same_crop_and_flip(tmp_path: Path) -> None:
    source = BoxSource(write_boxes(tmp_path, train=1, val=20), "val")
    rng, seen = np.random.default_rng(0), 0
    for _ in range(CASES):
        index, side = int(rng.integers(len(source))), int(rng.integers(16, 200))
        file = Path(source.file(index).replace("/images/", "/labels/")).with_suffix(".txt")
        rows = np.loadtxt(file, ndmin=2)
        height, width = 120, 160
        tall, wide = int(rng.integers(20, height + 1)), int(rng.integers(20, width + 1))
        top, left = int(rng.integers(height - tall + 1)), int(rng.integers(width - wide + 1))
        flip = bool(rng.random() < 0.5)
        geometry = Geometry(
            side, np.array([[top, left, tall, wide]]), np.array([flip]),
            np.array([height]), np.array([width]),
        )  # fmt: skip
        found = source.targets(np.array([index]), geometry)[0]
        found = found[found[:, 0] >= 0]
        boxes = BoundingBoxes(
            torch.from_numpy(rows[:, 1:] * [width, height, width, height]),
            format="CXCYWH", canvas_size=(height, width),
        )  # fmt: skip
        boxes = v2.functional.convert_bounding_box_format(boxes, new_format="XYXY")
        whole = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        cut = v2.functional.crop(boxes, top, left, tall, wide)
        cut = v2.functional.clamp_bounding_boxes(cut)
        share = (cut[:, 2:] - cut[:, :2]).clamp(min=0).prod(1) / whole
        if torch.isclose(share, torch.tensor(LEAST_SHOWN, dtype=share.dtype)).any():
            continue  # rounding decides
        shown = share >= LEAST_SHOWN
        cut = v2.functional.resize(cut, [side, side])
        cut = v2.functional.horizontal_flip(cut) if flip else cut
        torch.testing.assert_close(
            found[:, 1:], cut[shown].as_subclass(torch.Tensor).float(), atol=1e-3, rtol=0
        )
        assert found[:, 0].tolist() == rows[:, 0][shown.numpy()].tolist()
        seen += len(found)
    assert seen > CASES / 2


def test_check_dataset_names_the_image_whose_boxes_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_boxes(tmp_path, train=3, val=2)
    arguments = [f"root={root}", "data.format=examples.boxes.BoxSource"]
    assert check_dataset(arguments) == 0
    file = root / "labels" / "val" / "0.txt"
    file.write_text("0 0.5 0.5\n")
    with caplog.at_level("INFO"):
        assert check_dataset(arguments) == 1
    assert f"{file.stem}.jpg: " in caplog.text and "5 images checked, problems: 1" in caplog.text


def test_an_image_may_have_no_boxes_and_a_class_two_words(tmp_path: Path) -> None:
    root = write_boxes(tmp_path / "images" / "data", train=2, val=1)
    (root / "data.yaml").write_text("nc: 2\nnames: ['traffic light', 'stop sign']\n")
    (root / "labels" / "train" / "0.txt").write_text("")
    (root / "labels" / "train" / "1.txt").unlink()
    source, size = BoxSource(root, "train"), np.array([120, 120])
    boxes = np.array([[0, 0, 120, 160]] * 2)
    geometry = Geometry(32, boxes, np.zeros(2, bool), size, np.array([160, 160]))
    assert source.classes == ["traffic light", "stop sign"]
    assert (source.targets(np.arange(2), geometry) == -1).all()
    (root / "data.yaml").unlink()
    (root / "classes.txt").write_text("car\nbus\n")
    assert BoxSource(root, "val").classes == ["car", "bus"]


def test_a_split_without_a_folder_is_one_line(tmp_path: Path) -> None:
    root = write_boxes(tmp_path, train=1, val=1, val_name="other")
    with pytest.raises(DataError) as raised:
        BoxSource(root, "val")
    places = "images/val, val/images, images/valid, valid/images"
    assert str(raised.value) == f"{root} must have one of the folders {places}"


def test_detections_are_those_of_torchvision() -> None:
    torch.manual_seed(0)
    model = Detector(3).eval()
    torch.nn.init.normal_(model.fcos.head.classification_head.cls_logits.weight, std=0.5)
    image = torch.rand(1, 3, 128, 128)
    model.fcos.transform = torch.nn.Identity()
    with torch.no_grad():
        boxes, kinds, scores = detections(model(image)[0], least=0.3)
        rules = model.fcos
        rules.score_thresh, rules.detections_per_img, rules.topk_candidates = 0.3, 10**6, 10**6
        maps = list(rules.backbone(image).values())
        heads = rules.head(maps)
        counts = [each.shape[-2] * each.shape[-1] for each in maps]
        anchors = model(image)[0, :, -4:]
        (expected,) = rules.postprocess_detections(
            {name: list(head.split(counts, 1)) for name, head in heads.items()},
            [list(anchors.split(counts))],
            [(10**6, 10**6)],
        )
    assert len(scores) > 10
    # torchvision also answers the classes of a point that are not its likeliest.
    assert torch.isclose(expected["scores"][:, None], scores).any(0).all()
    assert set(kinds.tolist()) <= set(expected["labels"].tolist()) and boxes.shape[1] == 4


def test_perfect_outputs_find_every_box_and_others_none(tmp_path: Path) -> None:
    torch.manual_seed(0)
    root = write_boxes(tmp_path, train=2, val=1)
    config, _ = load_train_config(["data=folder", f"data.root={root}", "data.crop=squash"])
    source = BoxSource(root, "train")
    task, model = Boxes(source, config, torch.device("cpu")), Detector(len(source.classes))
    size = (np.array([120]), np.array([160]))
    geometry = Geometry(64, np.array([[0, 0, 120, 160]]), np.array([False]), *size)
    target = source.targets(np.array([0]), geometry)
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        outputs = model(image)
    boxes = target[0][target[0, :, 0] >= 0]
    perfect = torch.full_like(outputs, -9.0)
    perfect[..., -4:] = outputs[..., -4:]
    for box in boxes:  # the answer of the point nearest to its center
        anchors = outputs[0, :, -4:]
        center, size_ = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:3] - anchors[:, :1]
        point = int((center - (box[1:3] + box[3:5]) / 2).abs().sum(1).argmin())
        sides = torch.cat([center[point] - box[1:3], box[3:5] - center[point]]) / size_[point]
        perfect[0, point, int(box[0])], perfect[0, point, -5] = 9.0, 9.0
        perfect[0, point, 2:6] = sides
    scores = task.scores(perfect, target)
    assert task.measure(scores) == {"found": 1.0}
    assert task.mistakes(scores, 1) == [(0, f"0 of {len(boxes)} missed")]
    assert task.measure(task.scores(torch.where(perfect == 9, -9.0, perfect), target))["found"] == 0
