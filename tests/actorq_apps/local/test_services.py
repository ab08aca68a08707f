"""The commands of a run's processes."""

from pathlib import Path

from actorq.config.run_config import RunConfig
from actorq.rundirectory import RunDirectory
from actorq_apps.local.services import services_of_run


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
