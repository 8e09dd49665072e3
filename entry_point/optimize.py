"""Packs a folder of images into the format that trains fastest: `python -m entry_point.optimize`.

Locally, `source=` and `output=` are required. In a SageMaker Processing job they default to the
job's folders; each host packs one part, and a final run with `merge=` merges the parts. `ML_ROOT`
replaces /opt/ml.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.packing_config import OptimizeConfig
from entry_point.contract import exit_codes
from entry_point.contract.processing_job import ProcessingJob, run_command
from entry_point.contract.program import asks_for_help
from entry_point.data.errors import DataError
from entry_point.data.packing.index_folder import index_folder
from entry_point.data.packing.merge import merge
from entry_point.data.packing.pack import pack
from entry_point.data.sources.dataset_description import DESCRIPTION, read_description
from entry_point.large_imports import end_process

log = logging.getLogger("optimize")


def main(arguments: Sequence[str]) -> int:
    if asks_for_help(arguments, __doc__):
        return exit_codes.FINISHED
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)

    def program(job: ProcessingJob | None) -> int:
        run(load_config("optimize", OptimizeConfig, arguments), job)
        return exit_codes.FINISHED

    return run_command("dataset", program)


def run(config: OptimizeConfig, job: ProcessingJob | None) -> None:
    """Pack or merge as configured; in a job, folders default to the job's."""
    if config.merge:
        output = Path(config.output or "")
        merge([Path(part) for part in config.merge], output)
    elif config.output_format == "index" and job is None:
        if config.source is None:
            raise ConfigError("source", None, "must name a folder, as in source=PHOTOS")
        folder = Path(config.output) if config.output else None
        output = index_folder(Path(config.source), folder, config)
    elif job is not None:
        output = _pack_in_job(config, job)
    else:
        if config.source is None or config.output is None:
            key = "source" if config.source is None else "output"
            raise ConfigError(key, None, "must name a folder, as in source=PHOTOS output=FOLDER")
        output = Path(config.output)
        pack(Path(config.source), output, config, is_part=config.classes is not None)
    log.info("the dataset is in %s", output)


def _pack_in_job(config: OptimizeConfig, job: ProcessingJob) -> Path:
    several = job.hosts.count > 1
    if config.output_format == "index" or (several and config.output_format == "folder"):
        must = "must be shards in a job" + (" with several hosts" if several else "")
        raise ConfigError("output_format", config.output_format, must)
    config = replace(config, part=job.hosts.rank)
    source = Path(config.source or job.input)
    whole = Path(config.output or job.output)
    if (whole / DESCRIPTION).is_file():
        raise DataError(
            f"output={whole} already holds a dataset: remove it or choose another folder"
        )
    part = whole / f"part-{config.part:02d}"
    pack(source, part, config, is_part=several)
    if several:
        share_shards(part)
        return part
    _move_up(part)
    return whole


def share_shards(part: Path) -> None:
    """Move a part's shards to their place in the whole dataset: part-00/train/X.tar -> train/X.tar.

    In S3 the outputs of all hosts become one folder. The shards' names are unique; descriptions and
    indexes stay in the part's folder until the merge.
    """
    for split, content in read_description(part).splits.items():
        folder = part.parent / split
        folder.mkdir(exist_ok=True)
        for shard in content.shards:
            if not (folder / shard.file).exists():
                (part / split / shard.file).rename(folder / shard.file)


def _move_up(part: Path) -> None:
    """Turn the only part into the dataset; the description, which marks it complete, comes last."""
    for entry in sorted(part.iterdir(), key=lambda entry: entry.name == DESCRIPTION):
        entry.rename(part.parent / entry.name)
    part.rmdir()


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
