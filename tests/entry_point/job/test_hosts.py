"""What a job reads about its hosts: SageMaker's file, and the variables of other launchers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.job.hosts import (
    MASTER_PORT,
    TORCH,
    TORCHRUN,
    Hosts,
    read_hosts,
    wait_for_names,
)
from entry_point.job.run_folder import ContractError


def hosts_of(**variables: object) -> Hosts:
    """The hosts of a job in an environment with only these variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (*TORCHRUN, *TORCH, "LOCAL_RANK"):
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, str(value))
        return read_hosts(Path("/no/such/folder"))


def write_resources(folder: Path, current: str, *names: str) -> None:
    content = {"current_host": current, "hosts": names, "network_interface_name": "eth0"}
    (folder / "resourceconfig.json").write_text(json.dumps(content))


def test_without_files_and_variables_there_is_one_host() -> None:
    assert hosts_of() == Hosts()


def test_a_hosts_rank_is_its_position_in_the_platforms_list(tmp_path: Path) -> None:
    write_resources(tmp_path, "algo-2", "algo-1", "algo-10", "algo-2")
    assert read_hosts(tmp_path) == Hosts(2, 3, ("algo-1", "algo-10", "algo-2"), interface="eth0")


def test_a_host_that_is_not_on_the_list_is_an_error(tmp_path: Path) -> None:
    write_resources(tmp_path, "algo-3", "algo-1")
    with pytest.raises(ContractError, match="'algo-3' is not among hosts"):
        read_hosts(tmp_path)


def test_a_host_without_an_address_is_named_after_the_time_limit() -> None:
    hosts = Hosts(0, 2, ("localhost", "no-such-host.invalid"))
    with pytest.raises(ContractError, match=r"no-such-host\.invalid"):
        wait_for_names(hosts, patience=0.0)


@given(st.integers(1, 1000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
@pytest.mark.parametrize("names", [TORCH, TORCHRUN])
def test_every_host_learns_its_number_and_where_to_meet(
    names: tuple[str, ...], place: tuple[int, int]
) -> None:
    count, rank = place
    hosts = hosts_of(**dict(zip(names, (count, rank, "host-0", 1234), strict=True)))
    assert hosts == (Hosts(rank, count, ("host-0",), 1234) if count > 1 else Hosts())


def test_the_port_has_a_default() -> None:
    assert hosts_of(WORLD_SIZE=2, RANK=1, MASTER_ADDR="a").port == MASTER_PORT


def test_a_variable_may_name_another_one() -> None:
    found = {"NODES": 2, "NODE": 1, "FIRST": "10.0.0.7"}
    named = dict(zip(TORCHRUN, ("$NODES", "${NODE}", "$FIRST", 7), strict=True))
    assert hosts_of(**found, **named) == Hosts(1, 2, ("10.0.0.7",), 7)


def test_sagemakers_file_wins_over_torchrun_and_torchrun_over_torchs_variables(
    tmp_path: Path,
) -> None:
    torch = dict(zip(TORCH, (4, 3, "torch", 1), strict=True))
    torchrun = dict(zip(TORCHRUN, (3, 2, "torchrun", 2), strict=True))
    assert hosts_of(**torch).names == ("torch",)
    # A PyTorchJob with nprocPerNode=2 multiplies WORLD_SIZE by it, and not PET_NNODES.
    assert hosts_of(**torch, **torchrun).names == ("torchrun",)
    write_resources(tmp_path, "algo-1", "algo-1")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (torch | torchrun).items():
            patch.setenv(name, str(value))
        assert read_hosts(tmp_path).names == ("algo-1",)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": 2, "RANK": 2, "MASTER_ADDR": "a"}, "RANK=2: must be .* from 0 to 1"),
        ({"RANK": 1}, "RANK=1: must be .* from 0 to 0 as WORLD_SIZE is 1"),
        ({"WORLD_SIZE": 2, "RANK": -1, "MASTER_ADDR": "a"}, "RANK=-1: must be .* from 0 to 1"),
        ({"WORLD_SIZE": 2, "MASTER_ADDR": "a"}, "RANK: is not set; set it to .* from 0 to 1"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two: must be the number of hosts"),
        ({"WORLD_SIZE": "²"}, "WORLD_SIZE=²: must be the number of hosts"),
        ({"WORLD_SIZE": 0}, "WORLD_SIZE=0: must be the number of hosts"),
        ({"WORLD_SIZE": 2, "RANK": 1}, "MASTER_ADDR: is not set; set it to .* with RANK=0"),
        (
            {"WORLD_SIZE": 2, "RANK": 1, "MASTER_ADDR": ""},
            "MASTER_ADDR: is not set; set it to .* with RANK=0",
        ),
        (
            {"WORLD_SIZE": 2, "RANK": 1, "MASTER_ADDR": "a", "MASTER_PORT": 70000},
            "MASTER_PORT=70000: must be a TCP port",
        ),
        ({"PET_NNODES": "1:3"}, "PET_NNODES=1:3: must be the number of hosts"),
        ({"PET_NNODES": "$NONE"}, r"PET_NNODES=\$NONE: must be the number of hosts"),
        (
            {"LOCAL_RANK": 0, "WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "a"},
            "LOCAL_RANK=0: this program starts the ranks of its host itself",
        ),
    ],
)
def test_a_wrong_value_is_one_line_with_variable_value_and_remedy(
    variables: dict[str, object], message: str
) -> None:
    with pytest.raises(ContractError, match=message) as raised:
        hosts_of(**variables)
    assert "\n" not in str(raised.value)
