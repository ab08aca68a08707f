"""One environment serves all services and commands, which cannot import each other."""

import pytest

from actor_service.external.serve import ServeSettings
from actor_service.process import ActorSettings
from actorq.config import settings
from actorq.config.run_config import RunConfig
from actorq.config.settings import Settings
from actorq.errors import UserError
from actorq.process import PROCESS_SETTINGS, ProcessSettings, parse_arguments
from actorq_apps.cli.certificates import CertificatesSettings
from actorq_apps.cli.evaluate import EvaluateSettings
from actorq_apps.cli.reset_environment import ResetSettings
from actorq_apps.cli.status import StatusSettings
from actorq_apps.cli.train import TrainSettings
from actorq_apps.meter.__main__ import MeterProcessSettings
from learner_service.process import LearnerSettings
from quantizer_service.process import QuantizerProcessSettings

SERVICES = (LearnerSettings, QuantizerProcessSettings, ActorSettings, MeterProcessSettings)
COMMANDS = (TrainSettings, EvaluateSettings, StatusSettings, ResetSettings, CertificatesSettings, ServeSettings)
OF_A_RUN = {leaf.variable for leaf in settings.leaves(RunConfig)}


def test_the_list_of_process_settings_matches_all_models() -> None:
    declared = {
        leaf.path[0]
        for model in (ProcessSettings, *SERVICES, *COMMANDS)
        for leaf in settings.leaves(model)
        if leaf.variable not in OF_A_RUN
    }
    assert declared == set(PROCESS_SETTINGS)
    assert list(PROCESS_SETTINGS) == sorted(PROCESS_SETTINGS)


@pytest.mark.parametrize("model", SERVICES, ids=lambda model: model.__name__)
def test_a_service_accepts_the_settings_of_the_others(model: type[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"STORE": "/data", "ROLE": "actor", "RUN_DIRECTORY": "/run", "LEARNER": "here:1"}.items():
        monkeypatch.setenv(f"ACTORQ_{name}", value)
    monkeypatch.setenv("ACTORQ_LEARNER_PORT_50051_TCP", "tcp://10.0.0.1:50051")
    of_service = parse_arguments("service", "A service.", (RunConfig, ProcessSettings, model), [])[2]
    declared = {"store", "role", "run_directory", "learner"} & set(model.model_fields)
    assert of_service.model_fields_set == declared


def test_no_setting_has_the_name_of_a_kubernetes_variable() -> None:
    for model in (RunConfig, ProcessSettings, *SERVICES, *COMMANDS):
        for leaf in settings.leaves(model):
            with pytest.raises(UserError, match=leaf.variable):
                settings.check_environment((), {leaf.variable: "1"})
