"""The only way in for a configuration: Hydra composes `configs/`, a dataclass checks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from entry_point.config.config_errors import ConfigError, explain

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def load_config(name: str, schema: type, overrides: Sequence[str]) -> DictConfig:
    """Compose `configs/<name>.yaml` with Hydra overrides against a dataclass `schema`.

    Raises:
        ConfigError: one message that names the key, the value and what is allowed.
    """
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = compose(name, list(overrides))
        # Hydra's `+key=value` adds what the schema does not know; merging does not.
        config = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.to_container(composed))
        assert isinstance(config, DictConfig)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise ConfigError(f"{missing[0]}: has no value; add {missing[0]}=VALUE")
        OmegaConf.to_object(config)
        return config
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(explain(error, overrides)) from error
    except ValueError as error:
        raise error if isinstance(error, ConfigError) else ConfigError(str(error)) from error
