"""Packs a folder of images into the format that trains fastest: `python -m entry_point optimize`.

Locally, `source=` and `output=` are required, and `part=N/M` packs a part of the shards. In a
SageMaker Processing job, the folders default to the job's, and each host packs one part. All parts
together are the dataset. `ML_ROOT` replaces /opt/ml.
"""

from __future__ import annotations

import logging
from pathlib import Path

from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import OptimizeConfig
from entry_point.config.part import part_of_run, path_of_run
from entry_point.data.packing.index_folder import index_folder
from entry_point.data.packing.pack import pack
from entry_point.job.processing import ProcessingJob
from entry_point.job.program import ExitCode

log = logging.getLogger(__name__)


def optimize(config: OptimizeConfig) -> int:
    """Pack as configured; in a job, folders default to the job's and each host packs a part.
    Returns the exit code."""
    job = ProcessingJob.here()
    source = path_of_run("source", config.source, job.input if job else None)
    if config.output_format == "index":
        if job is not None:
            raise ConfigError("output_format", config.output_format, "must be shards in a job")
        folder = Path(config.output) if config.output else None
        output = index_folder(source, folder, config)
    else:
        output = path_of_run("output", config.output, job.output if job else None)
        part, own_files = part_of_run(config.part, job, source)
        pack(source, output, config, part, own_files)
    what = "side indexes are" if config.output_format == "index" else "dataset is"
    log.info("the %s in %s", what, output)
    return ExitCode.FINISHED


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("optimize")
