"""Choosing the device, and joining and leaving the other ranks; torch's border is faked."""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from entry_point.config.train_config import TrainerConfig, load_train_config
from entry_point.job import devices, gpus
from entry_point.job.devices import Devices, join_devices
from entry_point.job.program import UserError
from entry_point.job.run_folder import RunFolder
from entry_point.training import trainer


@pytest.fixture
def gpu_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device file of a GPU that does not work."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(gpus, "_DEVICE_FILES", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("gpu_files")
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_that_torch_cannot_use_is_an_error_with_torchs_reason(device: Any) -> None:
    expected = (
        rf"^trainer\.device={device}: torch cannot use the GPUs of this host \(.+\); torch "
        rf"{torch.__version__.split('+')[0]}.* (is built for CUDA|has no CUDA).*"
        r"set trainer\.device=cpu$"
    )
    with pytest.raises(UserError, match=expected), join_devices(TrainerConfig(device=device)):
        pass


@pytest.mark.usefixtures("gpu_files")
def test_a_hidden_gpu_or_trainer_device_cpu_means_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with join_devices(TrainerConfig(device="cpu")) as joined:
        assert joined.device.type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with join_devices(TrainerConfig()) as joined:
        assert joined.device.type == "cpu"


def test_cuda_without_a_gpu_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_DEVICE_FILES", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        pytest.raises(UserError, match=r"^trainer\.device=cuda: this host has no NVIDIA GPU"),
        join_devices(TrainerConfig(device="cuda")),
    ):
        pass


class FakeCuda:
    """torch.cuda and torch.distributed on a host with two GPUs; records what is asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Any]] = []
        for module, name, answer in (
            (torch.cuda, "is_available", True),
            (torch.cuda, "device_count", 2),
            (torch.cuda, "is_bf16_supported", True),
            (torch.cuda, "set_device", None),
            (devices, "bind_near", None),
            (dist, "init_process_group", None),
            (dist, "new_group", object()),
            (dist, "get_rank", 1),
            (dist, "monitored_barrier", None),
            (dist, "destroy_process_group", None),
            (devices, "_abort_process_group", None),
        ):
            monkeypatch.setattr(module, name, self._recorder(name, answer))
        monkeypatch.setattr(dist, "ProcessGroup", object)
        for name, value in (("LOCAL_RANK", "1"), ("RANK", "1"), ("WORLD_SIZE", "2")):
            monkeypatch.setenv(name, value)

    def _recorder(self, name: str, answer: Any) -> Any:
        def record(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, options or arguments))
            return answer

        return record

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def test_a_rank_binds_its_gpu_before_it_joins_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    with join_devices(TrainerConfig(batch_size=2)) as joined:
        assert joined.device == torch.device("cuda", 1)
        assert joined.input_dtype is torch.bfloat16
    options = dict(fake.calls)["init_process_group"]
    assert options["device_id"] == torch.device("cuda", 1)
    names = fake.names()
    assert names.index("set_device") < names.index("init_process_group")
    assert names[-2:] == ["monitored_barrier", "destroy_process_group"]
    assert "_abort_process_group" not in names


def test_a_rank_that_fails_aborts_its_process_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    with pytest.raises(ArithmeticError), join_devices(TrainerConfig(batch_size=2)):
        raise ArithmeticError
    assert fake.names()[-1] == "_abort_process_group" and "monitored_barrier" not in fake.names()


@pytest.mark.parametrize(("precision", "wanted"), [("fp32", False), ("tf32", True)])
def test_fp32_is_without_tf32_unless_it_is_asked_for(
    precision: Any, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
    FakeCuda(monkeypatch)
    try:
        with join_devices(TrainerConfig(precision=precision, batch_size=2)) as joined:
            assert joined.precision == precision
            assert torch.backends.cudnn.allow_tf32 is wanted
            assert torch.backends.cuda.matmul.allow_tf32 is wanted
    finally:
        torch.set_float32_matmul_precision("highest")


def test_tf32_on_a_cpu_is_an_error() -> None:
    refused = r"^trainer\.precision=tf32: needs a GPU"
    with (
        pytest.raises(UserError, match=refused),
        join_devices(TrainerConfig(device="cpu", precision="tf32")),
    ):
        pass


def _one_of_two_fails(rank: int, folder: str) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({key: str(value) for key, value in place.items()})
    original = dist.init_process_group

    def meet(backend: str, **options: Any) -> None:
        original(backend, f"file://{folder}/meeting", rank=rank, world_size=2, **options)

    dist.init_process_group = meet  # type: ignore[assignment]
    try:
        with join_devices(TrainerConfig(device="cpu")) as joined:
            joined.gather(None)
            if rank == 1:
                raise ArithmeticError
            dist.all_reduce(torch.zeros(1))
    except ArithmeticError:
        Path(folder, "failed").touch()
        while not Path(folder, "learned").exists():  # this process does not end
            time.sleep(0.01)
    except RuntimeError:
        Path(folder, "learned").touch()


def test_the_other_ranks_learn_of_a_failure_while_the_failed_process_lives(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("forkserver")
    ranks = [fork.Process(target=_one_of_two_fails, args=(rank, str(tmp_path))) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=60)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
    assert codes == [0, 0] and (tmp_path / "learned").exists()


def test_a_batch_that_does_not_fit_into_gpu_memory_is_an_error_that_names_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB"

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError(text)

    monkeypatch.setattr(trainer, "Trainer", full)
    config, _ = load_train_config(["trainer.batch_size=256"])
    expected = (
        r"^trainer\.batch_size=256: does not fit into the GPU's memory \(CUDA out of memory\); "
        r"lower it, or raise optim\.accumulate=1 "
    )
    with pytest.raises(UserError, match=expected):
        trainer.run_training(config, RunFolder(tmp_path), Devices(torch.device("cpu"), None))
