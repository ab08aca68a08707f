"""`actorq profile` on a processor that computes the run's scheme wrongly."""

from collections.abc import Callable

import pytest

from actorq.cli import profile
from actorq.config.run_config import RunConfig
from actorq.errors import UserError


@pytest.mark.parametrize(("flags", "scheme"), [({"sse2"}, "int8-weights"), ({"sse2", "avx_vnni"}, "int8")])
def test_what_actors_use_here_is_measured(
    flags: set[str], scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(config: RunConfig, seconds: float, tell: Callable[[str], None], servers: object) -> None:
        raise UserError(f"measured in {config.scheme}")

    monkeypatch.setattr(profile, "processor_flags", lambda: frozenset(flags))
    monkeypatch.setattr(profile, "measure", measured)
    with pytest.raises(UserError, match=f"^measured in {scheme}$"):
        profile.run(["--scheme", "int8"])
    told = "actors act with int8-weights instead of int8: this processor has no int8 dot product"
    assert (told in capsys.readouterr().out) == (scheme != "int8")
