"""Where the server's settings come from."""

import shlex

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.serve_config import DEFAULT_ACCEPT, ServerConfig, load_serve_config


def test_without_any_setting_the_defaults_apply() -> None:
    config = load_serve_config([], {})
    assert (config.model_dir, config.serve) == (None, ServerConfig())


def test_the_command_line_wins_over_serve_overrides_and_these_over_sagemakers_variables() -> None:
    environment = {
        "SAGEMAKER_BIND_TO_PORT": "1001",
        "SAGEMAKER_MODEL_SERVER_WORKERS": "2",
        "SAGEMAKER_MAX_PAYLOAD_IN_MB": "3",
        "SERVE_OVERRIDES": "serve.port=1002 serve.max_batch=3 'model_dir=a b'",
    }
    config = load_serve_config(["serve.max_batch=4"], environment)
    assert (config.serve.port, config.serve.max_batch, config.serve.workers) == (1002, 4, 2)
    assert (config.serve.max_payload_mb, config.model_dir) == (3, "a b")


@pytest.mark.parametrize(
    ("typed", "origins"),
    [
        ("[https://example.com]", ["https://example.com"]),
        (
            "[https://a.example, http://localhost:3000]",
            ["https://a.example", "http://localhost:3000"],
        ),
        ("https://example.com:8443", ["https://example.com:8443"]),
        ("['http://[::1]:3000']", ["http://[::1]:3000"]),
        ("[*]", ["*"]),
        ("*", ["*"]),
        ("[]", []),
    ],
)
def test_origins_are_a_list_also_in_the_environment(typed: str, origins: list[str]) -> None:
    assert load_serve_config([f"serve.origins={typed}"], {}).serve.origins == origins
    environment = {"SERVE_OVERRIDES": shlex.quote(f"serve.origins={typed}")}
    assert load_serve_config([], environment).serve.origins == origins


@pytest.mark.parametrize(
    "origin",
    ["example.com", "https://example.com/", "https://Example.com", "https://example.com:443",
     "http://example.com:80", "https://*.example.com", "null"],
)  # fmt: skip
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"serve\.origins"):
        load_serve_config([f"serve.origins=[{origin}]"], {})


def test_an_endpoint_for_several_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="SAGEMAKER_MULTI_MODEL=true: this server has one model"):
        load_serve_config([], {"SAGEMAKER_MULTI_MODEL": "true"})


@pytest.mark.parametrize("accept", ["text/csv", "application/jsonlines", "application/json;top=3"])
def test_another_form_of_all_answers_is_retired(accept: str) -> None:
    assert load_serve_config([], {DEFAULT_ACCEPT: "application/json"}).serve == ServerConfig()
    with pytest.raises(ConfigError, match=f"{DEFAULT_ACCEPT}={accept}: retired: use"):
        load_serve_config([], {DEFAULT_ACCEPT: accept})
