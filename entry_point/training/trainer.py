"""The training loop: one rank's share of the job."""

from __future__ import annotations

import logging
import math
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import custom_op
from entry_point.config.train_config import TrainConfig
from entry_point.data.loader import open_training_set
from entry_point.job.devices import Devices
from entry_point.job.program import ExitCode, ReadError, UserError, job_began
from entry_point.job.run_folder import RunFolder
from entry_point.job.stop import Stopped, StopRequest
from entry_point.job.text import counted
from entry_point.model_folder import doubts, load_weights, read_code
from entry_point.training.checkpoints import Checkpoints
from entry_point.training.evaluation import Evaluation, evaluate
from entry_point.training.export import Export
from entry_point.training.input import DeviceBatch, TrainingInput, loader_spec
from entry_point.training.learner import Learner, explain_step
from entry_point.training.models import describe_parameters
from entry_point.training.progress import Progress, TimeLeft, write_tracked
from entry_point.training.results.log import RunLog, epoch_bar, log_to_stdout
from entry_point.training.results.loggers import LoggedRun, open_loggers
from entry_point.training.results.profiling import StepProfiler
from entry_point.training.results.report import Evaluated, FinishedRun, write_results
from entry_point.training.results.step_log import StepLog
from entry_point.training.results.summary import closing_lines, code_version, run_name
from entry_point.training.results.times import Moment
from entry_point.training.results.totals import Totals
from entry_point.training.resume import job_settings, load_to_resume, refuse_untrained
from entry_point.training.tasks.build_task import build_task, tracked_metric

logger = logging.getLogger(__name__)


class Trainer:
    """One rank's share of the job, resumed from the newest checkpoint if there is one.

    Every rank creates all parts; those that write files do so on the first rank only.
    """

    def __init__(self, config: TrainConfig, run: RunFolder, devices: Devices) -> None:
        self.run, self.devices = run, devices
        self.console = log_to_stdout(devices.is_first)
        code = read_code(config)  # now, as it may be edited while the dataset is opened
        dataset = open_training_set(config.data, run.channels)
        self.config = config = replace(config, data=dataset.data)  # with the detected format
        if config.pipeline.decoder != "pillow":
            load_operator(devices)
        self.stop = StopRequest(devices.cpu_group)
        with ExitStack() as parts:
            self.input = TrainingInput(config, dataset, devices, self.stop)
            parts.callback(self.input.close)
            self.task = build_task(config, self.input.train, devices.device)
            steps = self.input.train_loader.steps_per_epoch
            self.settings = job_settings(config, self.input.train, self.input.val, steps, devices)
            self.progress = Progress(steps, tracked_metric(config.task, self.task))
            classes, metric = self.input.classes, self.progress.metric
            self.export = Export(run, config, self.task, classes, metric, code)
            self.learner = Learner(config, devices, self.task, steps, run.channels)
            self.input.keep_last(self.learner.statistics_steps)
            self.log = StepLog(config, devices, run.checkpoints)
            saved = load_to_resume(run.checkpoints, self.settings, devices)
            if saved is not None:
                self.progress.load_state(saved["progress"])
                self.progress.check_epochs(config.trainer.epochs)
                if self.progress.is_complete(config.trainer):
                    refuse_untrained(saved, self.settings)
                self.learner.load_state(saved["learner"])
                self.log.load_state(saved["log"])
            step = self.resumed_at = self.progress.global_step
            every, infinite = config.trainer.checkpoint_every_steps, self.learner.infinite
            self.checkpoints = Checkpoints(run.checkpoints, every, step, devices.is_first, infinite)
            parts.callback(self.checkpoints.close)
            self.metrics = RunLog(run, devices.is_first)
            self.metrics.rewind(step, self.progress.epoch, (saved or {}).get("records", ""))
            parts.callback(self.metrics.close)
            if devices.is_first:
                earlier = self.metrics.records()
                logged = LoggedRun(run_name(run), run, config, earlier, self.resumed_at)
                self.metrics.loggers = open_loggers(logged)
                self._write_tracked(finished=False)
                if saved is not None:
                    self.export.restore(saved, self.progress)
            self._parts = parts.pop_all()
        self._time_left = TimeLeft(config.trainer.epochs * steps)
        self.profiler = StepProfiler(config.trainer.diagnose == "profile", run.profile, devices)

    def opening_lines(self) -> list[str]:
        """Returns lines that describe the run before it trains."""
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
        if progress.is_complete(config.trainer):
            more = f"trainer.epochs={epochs + 1} or more"
            if progress.epoch < epochs:
                more = f"trainer.early_stopping={progress.stale + 1} or more, or null,"
            lines.append(
                f"this run is complete (epoch {progress.epoch} of {epochs}): nothing to train; set "
                f"{more} to continue"
            )
        return lines

    def fit(self) -> Evaluation:
        """Train to the last epoch; returns the evaluation of the model that is exported.

        Raises:
            Stopped: the job was asked to stop, or a disk failed; a checkpoint has been saved.
        """
        exported: Evaluation | None = None
        while not self.progress.is_complete(self.config.trainer):
            evaluation: Evaluation | None = None
            try:
                self._train_epoch()
                if self.progress.epoch in self.config.trainer.evaluated_epochs:
                    evaluation = self._evaluate_epoch()
            except Stopped:
                self._save_checkpoint()
                raise
            best = self.progress.end_epoch()
            if is_exported := evaluation is not None and self.export.takes(self.progress, best):
                exported = evaluation
            self._save_checkpoint(best, is_exported)
            if self.progress.stops_early(self.config.trainer):
                metric = self.progress.metric
                logger.info(
                    "stopped early after epoch %d: no better %s than %s in the last %s",
                    self.progress.epoch,
                    metric.label,
                    metric.show(self.progress.best_value),
                    counted(self.progress.stale, "evaluation"),
                )
        return exported or self._export_again()

    def _train_epoch(self) -> None:
        """Train the rest of this epoch."""
        progress, trainer = self.progress, self.config.trainer
        self.log.begin_epoch()
        on_device = self.input.to_device(self.input.train_batches(progress.epoch, progress.step))
        title = f"epoch {progress.epoch + 1}/{trainer.epochs}"
        with epoch_bar(self.console, title, progress.steps_per_epoch, progress.step) as advance:
            for batch in self.profiler.watch(on_device, progress.steps_left):
                self._train_step(batch)
                self.stop.handle_signals()  # from now on, a stop request has something to save
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
        self.learner.update()
        self.log.add(loss, batch, computing, progress)
        progress.step += 1

    def _evaluate_epoch(self) -> Evaluation:
        """Evaluate and log the result."""
        self.log.check_losses()  # so that a NaN in the last steps is reported as a training loss
        result = self._evaluate()
        if not math.isfinite(result.loss):
            found = f"val_loss={result.loss} after epoch {self.progress.epoch}"
            raise self.log.diverged(found)
        self.progress.judge(result.metrics)
        if self.progress.value is None:
            logger.warning(
                "%s cannot decide which epoch is the best: it is not finite, or the task's "
                "measure() does not return it",
                self.progress.metric.key,
            )
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

    def _save_checkpoint(self, best: bool = False, is_exported: bool = False) -> None:
        """Save all that a later process needs to resume, and `model/` if this epoch is exported. A
        collective call."""
        self.log.check_losses()
        state = {
            **self.settings,
            "progress": self.progress.state(),
            "learner": self.learner.state(),
            "log": self.log.state(),
        }
        self.metrics.sync()
        export = self.export.write if is_exported else None
        self.checkpoints.save(state, self.progress.global_step, best=best, export=export)

    def _export_again(self) -> Evaluation:
        """Evaluate and write the model if this process exported none, as the run was complete or no
        epoch beat the best one of earlier starts. A collective call."""
        state = self.devices.from_first(self.export.best() if self.devices.is_first else None)
        if state is None or state["progress"]["epoch"] == self.progress.epoch:
            evaluation = self._evaluate()
            state = {"learner": self.learner.state(), "progress": self.progress.state()}
        else:
            self.learner.load_weights(state["learner"])
            logger.info("exporting the best weights, of epoch %d", state["progress"]["epoch"])
            evaluation = self._score()
        value = evaluation.metrics.get(self.progress.metric.name)  # images may have changed since
        if self.devices.is_first:
            self.export.write({**state, "progress": {**state["progress"], "value": value}})
        return evaluation

    def _write_tracked(self, *, finished: bool) -> None:
        images = self.settings["images"]["validation"]
        write_tracked(self.run, self.progress.metric, images, finished=finished)

    def finish(self, evaluation: Evaluation) -> None:
        """Write the results and log the closing lines. A collective call."""
        trainer, devices = self.config.trainer, self.devices
        totals = Totals(
            self.metrics.records(),
            trainer.batch_size,
            self.log.meter.all_settled(),
            devices.world_size,
            resumed_at=self.resumed_at,
            may_compile=trainer.compile is None and devices.device.type == "cuda",
        )
        self.checkpoints.wait()
        if self.devices.is_first:
            load_weights(self.run.model, self.learner.exported)  # the weights the report describes
        exported = Evaluated(
            self.task, self.learner.exported, self.input.val, evaluation, self.config.data
        )
        finished = FinishedRun(
            self.run,
            self.config,
            devices,
            self.progress.metric,
            self.input.train,
            exported,
            totals,
            show=self.metrics.show,
        )
        write_results(finished)
        self.checkpoints.finish()
        if not self.devices.is_first:
            return  # only the first rank logs the closing lines
        self.run.copy_metrics()
        self._write_tracked(finished=True)
        lines = closing_lines(
            totals,
            time.time() - job_began(),
            self.progress,
            evaluation,
            self.run,
            test_of=self.config if self.input.has_test else None,
        )
        for line in lines:
            logger.info(line)

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
            if devices.is_first:
                for line in [*config.doubts(), *doubts(config, trainer.input.classes)]:
                    logger.warning(line)
            devices.gather(None)  # so that no other rank's error appears above these lines
            trainer.finish(trainer.fit())
    except Stopped:
        for failed in filter(None, devices.gather(trainer.stop.failed_read)):
            raise ReadError(f"{failed}; then {run.resumed_by} resumes from here") from None
        logger.info("stopped on request; %s resumes from here", run.resumed_by)
        return ExitCode.STOPPED
    except Exception as error:
        explained = explain_step(error, config, devices.world_size)
        if explained is None:
            raise
        raise explained from error
    return ExitCode.FINISHED
