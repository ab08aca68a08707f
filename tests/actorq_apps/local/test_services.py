"""The commands of a run's processes."""

from pathlib import Path

import pytest

from actorq.config.run_config import RunConfig
from actorq.errors import UserError
from actorq.rundirectory import RunDirectory
from actorq_apps.local.services import Kind, services_of_run


def test_another_actor_module_runs_as_the_actors_alone() -> None:
    run, config = RunDirectory(Path("run")), RunConfig(actors=2)
    own = services_of_run(run, config, "here:1", "here:2", resume=False)
    other = services_of_run(run, config, "here:1", "here:2", resume=False, actor_module="my.actor")
    assert {service.name: service.command[2] for service in other} == {
        "learner": "learner_service",
        "quantizer": "quantizer_service",
        "actor-0": "my.actor",
        "actor-1": "my.actor",
        "evaluator": "actor_service",
        "meter": "actorq_apps.meter",
    }
    assert [service.command[3:] for service in own] == [service.command[3:] for service in other]
    assert all(service.restart_command[:3] == service.command[:3] for service in other)


def test_actors_for_simulators_have_known_addresses_and_evaluate_themselves() -> None:
    config = RunConfig.model_validate({"environment": "external/robot", "external": {"listen": "[::1]:7000"}})
    services = services_of_run(RunDirectory(Path("run")), config, "here:1", "here:2", resume=False)
    actors = {service.name: service.command for service in services if service.kind is Kind.ACTOR}
    assert list(actors) == ["actor-0", "actor-1"]
    for number, command in enumerate(actors.values()):
        assert "--external" in command
        assert command[command.index("--listen") + 1] == f"[::1]:{7000 + number}"
    assert not [service for service in services if service.kind is Kind.EVALUATOR]


def test_an_address_for_simulators_that_is_none_is_refused() -> None:
    config = RunConfig.model_validate({"environment": "external/robot", "external": {"listen": "7000"}})
    with pytest.raises(UserError, match=r"external\.listen: expected HOST:PORT"):
        services_of_run(RunDirectory(Path("run")), config, "here:1", "here:2", resume=False)
