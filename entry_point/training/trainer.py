"""The training loop: one rank's share of the job."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import custom_op
from entry_point.config.train_config import TrainConfig
from entry_point.contract import exit_codes
from entry_point.contract.run_folder import RunFolder
from entry_point.data.batch import Batch
from entry_point.training.checkpoints.checkpoint import CheckpointWriter, set_aside
from entry_point.training.checkpoints.checkpoint_schedule import CheckpointSchedule
from entry_point.training.checkpoints.identity import Settings, check_goes_on, identity, order
from entry_point.training.checkpoints.progress import Progress
from entry_point.training.checkpoints.resume import load_on_all_ranks
from entry_point.training.device_batches import DeviceBatch, device_batches
from entry_point.training.device_transform import DeviceTransform
from entry_point.training.devices import Devices
from entry_point.training.evaluation import Evaluation, Stopped, evaluate
from entry_point.training.input import TrainingData
from entry_point.training.learner import Learner
from entry_point.training.loss_guard import LossGuard, NonFiniteLossError
from entry_point.training.measure.headspace import MOST_SECONDS, Headspace, verdict
from entry_point.training.measure.profiling import StepProfiler
from entry_point.training.measure.startup import Startup
from entry_point.training.measure.step_log import StepLog
from entry_point.training.measure.stopwatch import Stopwatch
from entry_point.training.measure.totals import Totals
from entry_point.training.results.announcement import announcement
from entry_point.training.results.console import EpochBar, make_console
from entry_point.training.results.metrics_log import MetricsLog, Record
from entry_point.training.results.summary import summary_lines
from entry_point.training.results.write_results import write_results
from entry_point.training.stop import StopRequest

logger = logging.getLogger(__name__)


class Trainer:
    """One rank's share of the job."""

    def __init__(self, config: TrainConfig, yaml: str, run: RunFolder, devices: Devices) -> None:
        self.config, self.yaml, self.run, self.devices = config, yaml, run, devices
        self.bar = EpochBar(make_console(devices.is_first), devices.is_first)
        self.startup = Startup()
        self.startup.mark("imports")
        if config.pipeline.engine != "pillow":
            custom_op.load()
        self.startup.mark("compile")
        self.stop = StopRequest(devices.cpu_group)
        self.open = ExitStack()
        self.data = TrainingData(config, run, devices)
        self.open.callback(self.data.close)
        self.order = order(config, self.data.train, devices)
        self.progress = Progress(self.data.train_loader.steps_per_epoch)
        self.prepare = DeviceTransform(config.data, config.trainer.seed).to(devices.device)
        self.learner = Learner(
            config,
            devices,
            num_classes=len(self.data.classes),
            steps_per_epoch=self.progress.steps_per_epoch,
            channels=run.channels,
        )
        self.evaluation: Evaluation | None = None
        self.guard, self.log = LossGuard(), StepLog(devices, config.trainer.batch_size)
        self.headspace = Headspace(config.trainer.headspace)
        self.profiler = StepProfiler(config.trainer.profile, run.profile, devices)
        earlier = self._resume() if config.trainer.resume else []
        self.schedule = CheckpointSchedule(config.trainer, self.progress.global_step)
        self.startup.mark("data")
        if devices.is_first:
            run.create()
            set_aside(run.checkpoints, after=self.progress.global_step)
            self.checkpoints = CheckpointWriter(run.checkpoints, config.trainer.keep_checkpoints)
            self.open.callback(self.checkpoints.close)
            self.metrics = MetricsLog(run.output_data / "metrics.jsonl", run.tensorboard, earlier)
            self.open.callback(self.metrics.close)
        self.open.callback(self.bar.stop)

    # -- the loop

    def fit(self) -> bool:
        """Train to the last epoch. False if the job was asked to stop before."""
        self._announce()
        while self.progress.epoch < self.config.trainer.epochs:
            if not self._train_epoch():
                return False
            if self._evaluation_is_due():
                try:
                    self._log_evaluation(self._evaluate())
                except Stopped:
                    self._save_checkpoint()
                    return False
            best = self.progress.end_epoch()
            self._save_checkpoint(best)
            if self.headspace.due and not self._measure_headspace():
                return False
        return True

    def _train_epoch(self) -> bool:
        """The rest of this epoch. False if it ended early with a checkpoint, on request."""
        trainer, here = self.config.trainer, self.progress
        self.bar.start(f"epoch {here.epoch + 1}/{trainer.epochs}", here.steps_per_epoch, here.step)
        self.log.begin_epoch()
        on_device = self._on_device(self.headspace.keep(self._batches()))
        for batch in self.profiler.watch(on_device, here.steps_left):
            self.startup.mark("first_batch")
            self._train_step(batch)
            self.startup.finish("first_step")
            self.bar.advance()
            if here.global_step % trainer.log_every_steps == 0 or not here.steps_left:
                with self.log.meter.pause():
                    self._add_records(self.log.records(here, self.learner.lr))
            by_first = self.devices.is_first and self.schedule.time_is_up()
            stop, time_is_up = self.stop.agreed(by_first)
            if stop or self.schedule.is_due(here.global_step, time_is_up):
                with self.log.meter.pause():
                    self._save_checkpoint()
            if stop:
                self.bar.stop()
                return False
        self.bar.stop()
        return True

    def _batches(self) -> Iterator[Batch]:
        """What is left of this epoch."""
        here, loader = self.progress, self.data.train_loader
        if self.config.trainer.overfit_one_batch:
            return itertools.repeat(next(iter(loader.epoch(0, 0))), here.steps_left)
        return loader.epoch(here.epoch, here.step)

    def _on_device(self, batches: Iterator[Batch]) -> Iterator[DeviceBatch]:
        prepare = partial(self.prepare, epoch=self.progress.epoch)
        return device_batches(
            batches, self.devices.device, prepare, self.config.trainer.channels_last
        )

    def _train_step(self, batch: DeviceBatch) -> None:
        here = self.progress
        with Stopwatch(self.devices.device) as computing:
            loss = self.learner.loss(batch.images, batch.labels, here.global_step)
            self.guard.watch(loss, here.epoch, here.step, batch.indices)
            self.learner.update()
        self.log.add(loss, batch, computing)
        here.step += 1

    def _measure_headspace(self) -> bool:
        """False if a stop was asked for meanwhile."""
        deadline, stopped = time.monotonic() + MOST_SECONDS, False

        def train(batches: Iterator[Batch]) -> int:
            nonlocal stopped
            steps = 0
            for batch in self._on_device(batches):
                steps += 1
                self.learner.loss(batch.images, batch.labels, self.progress.global_step)
                self.learner.update()
                stopped, over = self.stop.agreed(time.monotonic() > deadline)
                if stopped or over:
                    break
            return steps

        epoch = self.log.meter.epoch
        measured = self.headspace.measure(epoch, self.learner, self.devices.device, train)
        if not stopped:
            self._add_records([self.progress.stamp({"headspace": round(measured.speedup, 3)})])
            logger.info(verdict(*measured))
        return not stopped

    def _evaluate(self) -> Evaluation:
        self.learner.synchronise_buffers()
        return evaluate(
            self.learner.evaluated,
            self.data.val_loader,
            self.prepare,
            self.devices,
            samples=len(self.data.val),
            channels_last=self.config.trainer.channels_last,
            stop=self.stop,
        )

    def _evaluation_is_due(self) -> bool:
        number, trainer = self.progress.epoch + 1, self.config.trainer
        return number % trainer.evaluate_every_epochs == 0 or number == trainer.epochs

    def _log_evaluation(self, result: Evaluation) -> None:
        if not math.isfinite(result.loss):
            raise RuntimeError(
                f"val_loss={result.loss} after epoch {self.progress.epoch}; the checkpoints in "
                f"{self.run.checkpoints} are from before; lower optim.lr"
            )
        self.progress.accuracy, self.evaluation = result.accuracy, result
        values = {"val_loss": round(result.loss, 6), "val_accuracy": round(result.accuracy, 6)}
        if result.damaged:
            values["val_damaged"] = result.damaged
        self._add_records([self.progress.stamp(values)])

    def _add_records(self, records: Sequence[Record]) -> None:
        if self.devices.is_first:
            for record in records:
                self.metrics.add(record)

    # -- checkpoints

    def _save_checkpoint(self, best: bool = False) -> None:
        """A collective call; the first rank writes."""
        self.guard.flush()
        here, interval = self.progress, self.log.interval.state(self.devices)
        if self.devices.is_first:
            state = {
                "identity": self._identity(),
                "order": self.order,
                **here.state(),
                "interval": interval,
                "records": list(self.metrics.records),
                **self.learner.state(),
            }
            self.checkpoints.save(state, here.global_step, best=best)
        self.schedule.saved(here.global_step)

    def _resume(self) -> list[Record]:
        """Go to where the newest checkpoint stands; returns the records logged until there."""
        state = load_on_all_ranks(self.run.checkpoints, self.devices)
        if state is None:
            return []
        check_goes_on(state, self._identity(), self.order)
        self.learner.load_state(state)
        self.progress.load_state(state)
        self.progress.check_plan(self.config.trainer.epochs)
        self.log.interval.load_state(state["interval"], self.devices)
        records: list[Record] = state["records"]
        return records

    def _identity(self) -> Settings:
        return identity(self.config, self.data.train, self.progress.steps_per_epoch)

    # -- what it says and leaves behind

    def _announce(self) -> None:
        here = self.progress
        model, data = self.learner.model, self.data
        lines = announcement(
            self.config, self.devices, model, data.train, data.val, here.steps_per_epoch
        )
        start = f"start    epoch {here.epoch}, step {here.step}; run folder {self.run.root}"
        for line in [*lines, start]:
            logger.info(line)
        if here.epoch == (planned := self.config.trainer.epochs):
            logger.info(
                "this run is complete (epoch %d of %d): nothing to train; trainer.epochs=%d "
                "goes on",
                planned,
                planned,
                planned + 1,
            )

    def finish(self) -> None:
        """Write the outputs, on the first rank."""
        # A finished run that is started again has its checkpoint, but no evaluation.
        evaluation = self.evaluation or self._evaluate()
        steps = self.log.meter.all()
        if self.devices.is_first:
            records, images = self.metrics.records, self.config.trainer.batch_size
            totals = Totals(records, images, steps, self.headspace.measured)
            self.checkpoints.wait()
            write_results(
                self.run,
                self.config,
                self.yaml,
                model=self.learner.evaluated,
                val=self.data.val,
                evaluation=evaluation,
                totals=totals,
                devices=self.devices.describe(),
            )
            accuracy, best = self.progress.accuracy, self.progress.best_accuracy
            seconds = self.startup.elapsed
            for line in summary_lines(totals, seconds, accuracy, best, self.run):
                logger.info(line)

    def close(self) -> None:
        """Let go of the loaders, the checkpoint thread and the log."""
        self.open.close()


def run_training(config: TrainConfig, yaml: str, run: RunFolder, devices: Devices) -> int:
    """Train in `run`; returns the exit code."""
    trainer = Trainer(config, yaml, run, devices)
    try:
        finished = trainer.fit()
        if finished:
            trainer.finish()
    except Stopped:
        finished = False
    except NonFiniteLossError as error:
        keys = [trainer.data.train.key(int(index)) for index in error.indices]
        raise RuntimeError(
            f"{error}, on the samples {', '.join(keys)}; the checkpoints in {run.checkpoints} are "
            "from before; lower optim.lr, or look at these images"
        ) from error
    finally:
        trainer.close()
    if not finished:
        resumes = config.trainer.resume
        way = "the same command goes" if resumes else "with trainer.resume=true the job goes"
        logger.info("stopped on request; %s on from here", way)
    return exit_codes.FINISHED if finished else exit_codes.STOPPED
