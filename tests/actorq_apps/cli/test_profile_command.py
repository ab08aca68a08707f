"""`actorq profile`: the schemes that it measures, and its tables."""

import logging
import sys
from collections.abc import Callable

import pytest

from actorq.arithmetic import Arithmetic
from actorq.config.run_config import RunConfig
from actorq.domain.policy import SCHEMES, UNSIGNED
from actorq.errors import UserError
from actorq_apps.cli import profile
from actorq_apps.profile.links import Counters, LinkFigures
from actorq_apps.profile.measure import Figures

_PAUSED = Counters(1.0, 1.0, 100_000, 0, 0, actors_s=1.0, learner_s=0.5, quantizer_s=0.0)
_TRAINING = Counters(2.5, 0.5, 20_000, 400, 20, actors_s=0.4, learner_s=1.8, quantizer_s=0.1)


@pytest.mark.parametrize(("exact", "scheme"), [((), "int8-weights"), ((UNSIGNED,), "int8")])
def test_measures_the_scheme_that_actors_use_on_this_processor(
    exact: tuple[str, ...], scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(config: RunConfig, seconds: float, tell: Callable[[str], None], servers: object) -> None:
        raise UserError(f"measured in {config.scheme}")

    monkeypatch.setattr(profile, "arithmetic", lambda: Arithmetic(exact))
    monkeypatch.setattr(profile, "measure", measured)
    with pytest.raises(UserError, match=f"^measured in {scheme}$"):
        profile.run(["--scheme", "int8"])
    assert ("int8-weights instead of int8" in capsys.readouterr().out) == (scheme != "int8")


def test_tables_are_not_cut_in_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(config: RunConfig, *_: object) -> Figures:
        def each(value: float) -> dict[str, float]:
            return dict.fromkeys(SCHEMES, value)

        size = {"environments": 8, "environment_s": 4e-5, "call_s": each(1234.5e-6), "loop_cpu_s": each(2e-3)}
        actor = {"sizes": [{**size, "loop_s": each(2e-3)}], "load_s": each(5e-4), "dropped": {}, "valid": 1.0}
        learner = {"update_s": 0.1, "update_cpu_s": 0.1, "version_s": 1e-4, "batch_size": 128, "device": "cpu"}
        quantizer = {"version_s": each(0.0123456), "failed": {}}
        return Figures(config, actor, learner, quantizer, LinkFigures(2, _PAUSED, _TRAINING), 500)

    monkeypatch.setattr(profile, "measure", measured)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    # What limits the run, and so the widths of the columns, depends on the machine's cores.
    assert profile.run(["--cores", "2"]) == 0
    # The meter has ended, with its thread and its filter on codecarbon's log.
    assert not logging.getLogger("codecarbon").filters
    costs, predictions = capsys.readouterr().out.split("Predictions: ")
    assert "…" not in costs + predictions
    assert costs.count(" 1,234.5") == len(SCHEMES)
    assert predictions.count(" 1.00x") == len(SCHEMES)
    for line in ("steps/s, 2 actors", "limited by", "core hours, 1M steps", "actors one learner can use"):
        assert line in predictions
