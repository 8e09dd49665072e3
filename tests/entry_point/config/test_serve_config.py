"""Where the server's settings come from."""

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.serve_config import ServerConfig, load_serve_config


def test_without_any_setting_the_defaults_apply() -> None:
    config = load_serve_config([], {})
    assert (config.model_dir, config.serve) == (None, ServerConfig())


def test_the_command_line_wins_over_serve_overrides_and_these_over_sagemakers_variables() -> None:
    environment = {
        "SAGEMAKER_BIND_TO_PORT": "1001",
        "SAGEMAKER_MODEL_SERVER_WORKERS": "2",
        "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT": "text/csv;q=0.5, it's",
        "SERVE_OVERRIDES": "serve.port=1002 serve.max_batch=3 'model_dir=a b'",
    }
    config = load_serve_config(["serve.max_batch=4"], environment)
    assert (config.serve.port, config.serve.max_batch, config.serve.workers) == (1002, 4, 2)
    assert config.serve.default_accept == "text/csv;q=0.5, it's"
    assert config.model_dir == "a b"


@pytest.mark.parametrize(
    ("payload", "concurrent", "offered"), [(25, 4, 25), (6, 16, 6), (100, 1, 100), (500, 1, 100)]
)
def test_batch_transform_gets_what_its_limit_of_100_mb_allows(
    payload: int, concurrent: int, offered: int
) -> None:
    config = ServerConfig(max_payload_mb=payload)
    assert (config.concurrent_transforms(), config.transform_payload_mb()) == (concurrent, offered)


def test_sagemakers_own_limits_for_batch_transform_are_taken() -> None:
    environment = {"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "7", "SAGEMAKER_MAX_PAYLOAD_IN_MB": "3"}
    config = load_serve_config([], environment).serve
    assert (config.concurrent_transforms(), config.transform_payload_mb()) == (7, 3)


def test_an_endpoint_for_several_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="SAGEMAKER_MULTI_MODEL=true: this server has one model"):
        load_serve_config([], {"SAGEMAKER_MULTI_MODEL": "true"})
