"""The job's own overrides, held against the job's schema before a machine is paid for.

The schema is the one that the container checks with. It needs Hydra, but neither torch nor data.
"""

from collections.abc import Sequence

from launch.errors import LaunchError


def check_training(overrides: Sequence[str]) -> None:
    """Raise LaunchError with the line that the training job itself would end with."""
    from entry_point.config import load_train_config
    from entry_point.config_errors import ConfigError

    try:
        load_train_config(overrides)
    except ConfigError as error:
        raise LaunchError(str(error)) from error


def check_packing(overrides: Sequence[str]) -> None:
    """The same for the job that packs a data set."""
    from entry_point.config import load_config
    from entry_point.config_errors import ConfigError
    from entry_point.data.packing.config import OptimizeConfig

    try:
        load_config("optimize", OptimizeConfig, overrides)
    except ConfigError as error:
        raise LaunchError(str(error)) from error
