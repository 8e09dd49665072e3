"""The training loop: one rank's share of the job."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice

import custom_op
from entry_point.config.compose import resolved_yaml
from entry_point.config.train_config import TrainConfig
from entry_point.data.loader import open_training_set
from entry_point.job.devices import Devices, leave_ranks
from entry_point.job.program import ExitCode, ReadError, UserError, counted, end_at_once
from entry_point.job.run_folder import RunFolder
from entry_point.job.stop import Stopped, StopRequest, export_within
from entry_point.model_folder import Unfinished, save_model
from entry_point.training.checkpoints import Checkpoints, job_settings, load_best, load_to_resume
from entry_point.training.evaluation import Evaluation, evaluate
from entry_point.training.input import DeviceBatch, TrainingInput, device_batches, loader_spec
from entry_point.training.learner import Learner, explain_step
from entry_point.training.models import describe_parameters
from entry_point.training.progress import Progress, TimeLeft, write_tracked
from entry_point.training.results.log import MetricsLog, epoch_bar, log_to_stdout, parse_records
from entry_point.training.results.loggers import LoggedRun, open_loggers
from entry_point.training.results.profiling import StepProfiler
from entry_point.training.results.report import FinishedRun, remove_results, write_results
from entry_point.training.results.step_log import DivergedError, LossGuard, StepLog
from entry_point.training.results.summary import closing_lines, code_version, run_name
from entry_point.training.results.times import Moment
from entry_point.training.results.totals import Totals
from entry_point.training.tasks.build_task import build_task, tracked_metric

logger = logging.getLogger(__name__)


class Trainer:
    """One rank's share of the job, resumed from the newest checkpoint if there is one.

    Every rank has every part; a part that writes files does so on the first rank only.
    """

    def __init__(self, config: TrainConfig, run: RunFolder, devices: Devices) -> None:
        self.run, self.devices = run, devices
        self.console = log_to_stdout(devices.is_first)
        dataset = open_training_set(config.data, run.channels)
        self.config = config = replace(config, data=dataset.data)  # with the format that was found
        if config.pipeline.decoder != "pillow":
            load_operator(devices)
        self.stop = StopRequest(devices.cpu_group, devices.arrive, devices.supervisor)
        with ExitStack() as parts:
            self.input = TrainingInput(config, dataset, devices, self.stop)
            parts.callback(self.input.close)
            self.task = build_task(config, self.input.train, devices.device)
            steps = self.input.train_loader.steps_per_epoch
            self.settings = job_settings(config, self.input.train, self.input.val, steps, devices)
            self.progress = Progress(steps, tracked_metric(config.task, self.task))
            self.learner = Learner(config, devices, self.task, steps, run.channels)
            self.input.keep_last(self.learner.statistics_steps)
            self.log = StepLog(devices, config.trainer.batch_size)
            saved = load_to_resume(run.checkpoints, self.settings, devices)
            if saved is not None:
                self.progress.load_state(saved["progress"])
                self.progress.check_epochs(config.trainer.epochs)
                self.learner.load_state(saved["learner"])
                self.log.load_state(saved["log"])
            step = self.resumed_at = self.progress.global_step
            records = parse_records(saved["records"]) if saved else []
            every, infinite = config.trainer.checkpoint_every_steps, self.learner.infinite
            self.checkpoints = Checkpoints(run.checkpoints, every, step, devices.is_first, infinite)
            parts.callback(self.checkpoints.close)
            logged = LoggedRun(run_name(run), run, config, records)
            loggers = open_loggers(logged) if devices.is_first else []
            self.metrics = MetricsLog(run, records, devices.is_first, loggers)
            parts.callback(self.metrics.close)
            if devices.is_first:
                images = self.settings["images"]["validation"]
                write_tracked(run, self.progress.metric, images)
            self._parts = parts.pop_all()
        self.guard = LossGuard(config.optim, run.checkpoints)
        self._time_left = TimeLeft(config.trainer.epochs * steps)
        self.profiler = StepProfiler(config.trainer.diagnose == "profile", run.profile, devices)

    def opening_lines(self) -> list[str]:
        """Returns what the run will do."""
        config, progress, epochs = self.config, self.progress, self.config.trainer.epochs
        augment, steps = config.augment.describe(), progress.steps_per_epoch
        lines = [
            f"code     {code_version() or 'unknown revision'}",
            f"model    {config.model.name}, {describe_parameters(self.learner.model)}",
            f"task     {config.task.name}, best checkpoint by {progress.metric.label}",
            f"data     {self.input.describe()}",
            f"pipeline {loader_spec(config, self.devices, 'train').describe()}",
            *([f"augment  {augment}"] if augment else []),
            f"devices  {self.devices.describe()}",
            f"plan     {counted(epochs, 'epoch')} of {counted(steps, 'step')} of "
            f"{counted(config.trainer.batch_size, 'image')}, {config.optim.name}; "
            f"{epochs * steps:,} {'step' if epochs * steps == 1 else 'steps'} in all",
            f"start    epoch {progress.epoch}, step {progress.step}; run folder {self.run.root}",
        ]
        if progress.ends(config.trainer):
            more = f"trainer.epochs={epochs + 1} or more"
            if progress.epoch < epochs:
                more = f"trainer.early_stopping={progress.stale + 1} or more, or null,"
            lines.append(
                f"this run is complete (epoch {progress.epoch} of {epochs}): nothing to train; set "
                f"{more} to continue"
            )
        return lines

    def fit(self) -> Evaluation:
        """Train to the last epoch; returns the last evaluation.

        Raises:
            Stopped: the job was asked to stop, or a disk failed; a checkpoint has been saved.
        """
        evaluation: Evaluation | None = None
        while not self.progress.ends(self.config.trainer):
            try:
                self._train_epoch()
                if self.progress.epoch in self.config.trainer.evaluated_epochs:
                    evaluation = self._evaluate_epoch()
            except Stopped:
                self._save_checkpoint()
                raise
            best = self.progress.end_epoch()
            self._save_checkpoint(best)
            if self.progress.stops_early(self.config.trainer):
                metric = self.progress.metric
                logger.info(
                    "stopped early after epoch %d: no better %s than %s in the last %s",
                    self.progress.epoch,
                    metric.label,
                    metric.show(self.progress.best_value),
                    counted(self.progress.stale, "evaluation"),
                )
        # A complete run that is started again has a checkpoint, but no evaluation.
        return evaluation or self._evaluate()

    def _train_epoch(self) -> None:
        """Train the rest of this epoch."""
        progress, trainer = self.progress, self.config.trainer
        self.log.begin_epoch()
        on_device = self.input.to_device(self.input.train_batches(progress.epoch, progress.step))
        title = f"epoch {progress.epoch + 1}/{trainer.epochs}"
        with epoch_bar(self.console, title, progress.steps_per_epoch, progress.step) as advance:
            for batch in self.profiler.watch(on_device, progress.steps_left):
                self._train_step(batch)
                advance()
                if progress.global_step % trainer.log_every_steps == 0 or not progress.steps_left:
                    with self.log.meter.pause():
                        self.metrics.add(*self.log.records(progress, self.learner.record()))
                    if line := self._time_left.line(progress.global_step):
                        logger.info(line)
                stop, time_is_up = self.stop.agreed(self.checkpoints.time_is_up())
                if stop:
                    raise Stopped
                if self.checkpoints.is_due(progress.global_step, time_is_up):
                    with self.log.meter.pause():
                        self._save_checkpoint()

    def _train_step(self, batch: DeviceBatch) -> None:
        progress = self.progress
        computing = Moment(self.devices.device)
        loss = self.learner.loss(batch.images, batch.labels, progress.global_step)
        self.guard.watch(loss, progress.epoch, progress.step)
        self.learner.update()
        self.log.add(loss, batch, computing)
        progress.step += 1

    def _evaluate_epoch(self) -> Evaluation:
        """Evaluate and log the result."""
        self.guard.flush()  # a NaN of the last steps is named as such, not as the evaluation's
        result = self._evaluate()
        if not math.isfinite(result.loss):
            found = f"val_loss={result.loss} after epoch {self.progress.epoch}"
            raise DivergedError.of(found, self.config.optim, self.run.checkpoints)
        self.progress.judge(result.metrics)
        self.metrics.add(self.progress.stamp(result.record()))
        return result

    def _evaluate(self) -> Evaluation:
        if count := self.learner.statistics_steps:
            step = self.progress.global_step
            trained = self.input.to_device(self.input.last_batches(step, count))
            self.learner.measure_statistics((batch.images for batch in trained), step - count)
        self.learner.synchronize_buffers()
        return self._score()

    def _score(self) -> Evaluation:
        batches = self.input.val_loader.epoch(self.progress.epoch)
        return evaluate(
            self.learner.exported,
            self.task,
            self.input.to_device(batches, training=False),
            self.devices,
            samples=len(self.input.val),
            stop=self.stop,
        )

    def _save_checkpoint(self, best: bool = False) -> None:
        """Save everything that a later process needs to resume. A collective call."""
        self.guard.flush()
        state = {
            **self.settings,
            "progress": self.progress.state(),
            "learner": self.learner.state(),
            "log": self.log.state(),
            "records": self.metrics.text(),
        }
        self.checkpoints.save(state, self.progress.global_step, best=best)

    def finish(self, evaluation: Evaluation) -> None:
        """Write the results and log the closing lines. A collective call."""
        trainer, devices = self.config.trainer, self.devices
        totals = Totals(
            self.metrics.records,
            trainer.batch_size,
            self.log.meter.all_settled(),
            devices.world_size,
            may_compile=trainer.compile is None and devices.device.type == "cuda",
        )
        self.checkpoints.wait()
        if self.config.trainer.export == "best":
            evaluation = self._return_to_best() or evaluation
        finished = FinishedRun(
            self.run,
            self.config,
            resolved_yaml(self.config),
            self.devices,
            self.task,
            self.progress.metric,
            network=self.learner.exported,
            train=self.input.train,
            val=self.input.val,
            evaluation=evaluation,
            totals=totals,
            show=self.metrics.show,
        )
        write_results(finished)
        self.checkpoints.finish()
        if not self.devices.is_first:
            return  # the first rank may still be writing what the lines measure
        lines = closing_lines(
            totals,
            time.time() - self.devices.supervisor.began,
            self.progress,
            evaluation,
            self.run,
            resumed_at=self.resumed_at,
            test_of=self.config if self.input.has_test else None,
        )
        for line in lines:
            logger.info(line)

    def _return_to_best(self) -> Evaluation | None:
        """Load the weights of the best checkpoint; returns their evaluation.

        A collective call. None if what would be exported is the best already, or if no evaluation
        had a value to compare.
        """
        folder, first = self.run.checkpoints, self.devices.is_first
        state = self.devices.from_first(load_best(folder) if first else None)
        if state is None or (epoch := state["progress"]["epoch"]) == self.progress.epoch:
            return None
        self.learner.load_weights(state["learner"])
        logger.info("exporting the best weights, of epoch %d", epoch)
        return self._score()

    def export_stopped(self) -> None:
        """Leave a model if the platform stops the job, once the checkpoint is written.

        A collective call: a request may have reached other hosts only. The other ranks then wait
        for the first one where they leave it.
        """
        left = [each for each in self.devices.gather(self.stop.export_seconds) if each is not None]
        if left and self.devices.is_first:
            deadline = time.monotonic() + min(left)
            self.checkpoints.wait()
            export_within(deadline - time.monotonic(), self.run.model, self._export_unfinished)

    def _export_unfinished(self) -> None:
        """Write the model that the run would export now, without an evaluation. On one rank."""
        config, progress = self.config, self.progress
        best = load_best(self.run.checkpoints) if config.trainer.export == "best" else None
        if best is not None:
            self.learner.load_weights(best["learner"])
            progress.load_state(best["progress"])
        elif count := self.learner.statistics_steps:
            batches = islice(self.input.train_loader.epoch(progress.epoch), count)
            on_device = device_batches(batches, self.devices.device, self.input.normalize)
            images, step = (batch.images for batch in on_device), progress.global_step
            self.learner.measure_statistics(images, step, alone=True)
        remove_results(self.run)
        save_model(
            self.run.model,
            self.learner.exported,
            self.task,
            self.input.classes,
            config,
            resolved_yaml(config),
            Unfinished(progress.epoch, progress.global_step),
        )

    def close(self) -> None:
        """Close the loaders, the checkpoint thread and the log."""
        self._parts.close()


def load_operator(devices: Devices) -> None:
    """Load the operator, built by the first rank of each host. A collective call.

    If the build fails, the other ranks do not repeat it: all raise the same UserError.
    """
    problem: str | None = None
    if devices.local_rank == 0:
        try:
            custom_op.load()
        except custom_op.BuildError as error:
            problem = str(error)
    for found in filter(None, devices.gather(problem)):
        raise UserError(*found.splitlines(), "Or train without the operator: pipeline=pillow")
    custom_op.load()


def run_training(config: TrainConfig, run: RunFolder, devices: Devices) -> int:
    """Train in `run`; returns the exit code."""
    try:
        with closing(Trainer(config, run, devices)) as trainer:
            for line in trainer.opening_lines():
                logger.info(line)
            for line in config.doubts():
                logger.warning(line)
            try:
                trainer.finish(trainer.fit())
            except Stopped:
                trainer.export_stopped()
                raise
    except Stopped:
        for failed in filter(None, devices.gather(trainer.stop.failed_read)):
            raise ReadError(f"{failed}; then {run.resumed_by} resumes from here") from None
        logger.info("stopped on request; %s resumes from here", run.resumed_by)
        if trainer.stop.gave_up_waiting:
            leave_ranks(devices.cpu_group)
            end_at_once(ExitCode.STOPPED)
        return ExitCode.STOPPED
    except Exception as error:
        explained = explain_step(error, config, devices.world_size)
        if explained is None:
            raise
        raise explained from error
    return ExitCode.FINISHED
