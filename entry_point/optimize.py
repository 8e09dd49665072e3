"""Packs a folder of images into the form that trains fastest: `python -m entry_point.optimize`.

On the desk `source=` and `output=` say where. In a SageMaker Processing job they default to the
contract's folders; the host's number names its part, and a last run with `merge=` unites them.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from entry_point.config import load_config
from entry_point.config_errors import ConfigError
from entry_point.data.errors import DataError
from entry_point.data.index import read_description
from entry_point.data.packing.config import OptimizeConfig
from entry_point.data.packing.merge import merge
from entry_point.data.packing.pack import pack

log = logging.getLogger("optimize")

PROCESSING = Path("/opt/ml/processing")
HOSTS = Path("/opt/ml/config/resourceconfig.json")


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        config = OmegaConf.to_object(load_config("optimize", OptimizeConfig, arguments))
        assert isinstance(config, OptimizeConfig)
        output = run(config, Path(os.environ.get("PROCESSING_ROOT", PROCESSING)), HOSTS)
        if HOSTS.is_file() and not config.merge:
            share_shards(output)
        return 0
    except (ConfigError, DataError) as error:
        log.error("%s", error)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        log.error("no space left (%s): make room and run again, it goes on from there", error)
    return 1


def run(config: OptimizeConfig, processing: Path, hosts: Path) -> Path:
    """Pack or merge as configured; paths that are not given follow the Processing contract.

    Returns the folder made.
    """
    if config.merge:
        merge([Path(part) for part in config.merge], output := Path(config.output or ""))
        return output
    if hosts.is_file():
        config = replace(config, part=_host_number(hosts))
    source = Path(config.source) if config.source else processing / "input"
    output = (
        Path(config.output) if config.output else processing / "output" / f"part-{config.part:02d}"
    )
    pack(source, output, config)
    log.info("the data set is in %s", output)
    return output


def share_shards(part: Path) -> None:
    """Move a part's shards to where the whole has them: part-00/train/X.tar -> train/X.tar.

    In S3 the hosts' outputs become one folder. Shards have names of their own; descriptions and
    indexes stay apart until the desk unites them.
    """
    for split, content in read_description(part).splits.items():
        folder = part.parent / split
        folder.mkdir(exist_ok=True)
        for shard in content.shards:
            (part / split / shard.file).rename(folder / shard.file)
    (part.parent / f".{part.name}.lock").unlink(missing_ok=True)


def _host_number(file: Path) -> int:
    content = json.loads(file.read_text("utf-8"))
    return sorted(content["hosts"]).index(content["current_host"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
