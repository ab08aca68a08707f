"""Settings of a small tree: their sources, the order of precedence, and the errors for mistakes."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, model_validator

from actorq.config import settings
from actorq.config.parser import OneLineParser
from actorq.config.settings import DefaultText, Settings
from actorq.errors import UserError


class Tank(Settings):
    """What holds the water."""

    litres: Annotated[int, Field(gt=0, le=500)] = Field(100, description="volume in litres")
    fill: float = Field(0.5, description="share that is full")
    lid: Path | None = Field(None, description="drawing of the lid")
    pipes: Annotated[tuple[int, ...], Field(min_length=1)] = Field((10, 20), description="widths, 100% in mm")
    pump: Annotated[str | None, DefaultText("by hand")] = Field(None, description="name of the pump")
    power_watts: Annotated[float, Field(gt=0)] | None = Field(None, description="power of the pump; unknown when none")


class Garden(Settings):
    """A garden."""

    kind: Literal["herbs", "trees"] = Field("herbs", description="what grows")
    watered: bool = Field(True, description="whether it is watered")
    owner: str = Field("", description="who owns it")
    rain_tank: Tank = Tank()

    @model_validator(mode="after")
    def _trees_need_more(self) -> "Garden":
        if self.kind == "trees" and self.rain_tank.litres < 200:
            raise ValueError(f"rain_tank.litres must be at least 200 for trees, got {self.rain_tank.litres}")
        return self


def garden(
    yaml: str | None = None, environment: dict[str, str] | None = None, flags: tuple[str, ...] = (), *, folder: Path
) -> Garden:
    parser = OneLineParser(prog="garden")
    settings.add_flags(parser, Garden)
    namespace = parser.parse_args(list(flags))
    path = folder / "garden.yaml"
    path.write_text(yaml or "", encoding="utf-8")
    settings.check_environment((Garden,), environment or {})
    return settings.build(
        Garden,
        settings.from_file(path),
        settings.from_environment(Garden, environment or {}),
        settings.from_flags(Garden, namespace),
    )


def test_without_anything_all_settings_have_their_defaults(tmp_path: Path) -> None:
    assert garden(folder=tmp_path) == Garden()


def test_flags_override_the_environment_and_the_environment_overrides_the_file(tmp_path: Path) -> None:
    yaml = "rain_tank: {litres: 1, fill: 0.1, pipes: [1, 2]}\nowner: file\n"
    environment = {"ACTORQ_RAIN_TANK__LITRES": "2", "ACTORQ_RAIN_TANK__FILL": "0.2", "HOME": "/root"}
    result = garden(yaml, environment, ("--rain-tank.litres", "3"), folder=tmp_path)
    assert result == Garden(owner="file", rain_tank=Tank(litres=3, fill=0.2, pipes=(1, 2)))


def test_a_setting_has_the_same_name_in_yaml_the_environment_and_flags() -> None:
    leaves = {leaf.path: leaf for leaf in settings.leaves(Garden)}
    leaf = leaves["rain_tank", "power_watts"]
    assert (leaf.flag, leaf.variable) == ("--rain-tank.power-watts", "ACTORQ_RAIN_TANK__POWER_WATTS")


@pytest.mark.parametrize("text", ["5", "5,", " 5 ,"])
def test_reads_a_tuple_of_one_value(text: str, tmp_path: Path) -> None:
    assert garden(flags=("--rain-tank.pipes", text), folder=tmp_path).rain_tank.pipes == (5,)


def test_a_tuple_is_read_from_commas(tmp_path: Path) -> None:
    assert garden(flags=("--rain-tank.pipes", "5, 6,7"), folder=tmp_path).rain_tank.pipes == (5, 6, 7)
    environment = {"ACTORQ_RAIN_TANK__PIPES": "8,9"}
    assert garden(environment=environment, folder=tmp_path).rain_tank.pipes == (8, 9)


@pytest.mark.parametrize("text", ["none", "None", "NONE"])
def test_none_resets_a_setting_of_the_file(text: str, tmp_path: Path) -> None:
    yaml = "rain_tank: {power_watts: 40, lid: lid.svg}"
    result = garden(yaml, {"ACTORQ_RAIN_TANK__LID": text}, ("--rain-tank.power-watts", text), folder=tmp_path).rain_tank
    assert (result.power_watts, result.lid) == (None, None)


def test_none_is_a_plain_text_for_a_required_setting(tmp_path: Path) -> None:
    assert garden(flags=("--owner", "none"), folder=tmp_path).owner == "none"


def test_a_switch_has_a_flag_for_on_and_one_for_off(tmp_path: Path) -> None:
    assert garden("watered: false", flags=("--watered",), folder=tmp_path).watered
    assert not garden(flags=("--no-watered",), folder=tmp_path).watered
    assert not garden(environment={"ACTORQ_WATERED": "false"}, folder=tmp_path).watered


@pytest.mark.parametrize(
    ("yaml", "fact"),
    [
        ("rain_tank: {litres: 0}", r"'rain_tank\.litres'.* from 1 to 500, got 0$"),
        ("rain_tank: {litres: 501}", r"'rain_tank\.litres'.* 500,.* 501$"),
        ("rain_tank: {litres: much}", r"'rain_tank\.litres'.*whole number.*'much'$"),
        ("rain_tank: {litres: 1.5}", r"'rain_tank\.litres'.*whole number.* 1\.5$"),
        ("rain_tank: {fill: .nan}", r"'rain_tank\.fill'.*finite.* nan$"),
        ("rain_tank: {fill: .inf}", r"'rain_tank\.fill'.*finite.* inf$"),
        ("rain_tank: {fill: [1]}", r"'rain_tank\.fill'.*number.* \[1\]$"),
        ("rain_tank: {fill: {}}", r"'rain_tank\.fill'.*number.* dict$"),
        ("rain_tank: {pipes: []}", r"'rain_tank\.pipes'.* one item or more.* \[\]$"),
        ("kind: moss", "'kind'.*herbs, trees, got 'moss'$"),
        ("owner: 5", "'owner'.*text.* 5$"),
        ("rain_tank: 5", "'rain_tank'.*section.* 5$"),
        ("rain_tank:", "'rain_tank'.*section.* None$"),
        ("rain_tank: {liters: 5}", r"'rain_tank\.liters'.*'rain_tank\.litres'"),
        ("gnomes: 7", "'gnomes'$"),
        ("kind: trees", r"rain_tank\.litres.* 200 .*trees.* 100$"),
        ("kind: moss\nowner: 5", "'kind'.*'moss'.* 1 more"),
        ("kind: moss\nowner: 5\nwatered: 7", "'kind'.*'moss'.* 2 more"),
        ('owner: a\nkind: "two\\nlines"', r"'kind'.*'two\\nlines'$"),
    ],
)
def test_reports_a_wrong_value_in_one_line_with_the_expected_value(yaml: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=fact) as caught:
        garden(yaml, folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_reports_a_wrong_value_in_the_environment_or_a_flag_alike(tmp_path: Path) -> None:
    fact = r"'rain_tank\.litres'.* from 1 to 500, got '-4'$"
    with pytest.raises(UserError, match=fact):
        garden(environment={"ACTORQ_RAIN_TANK__LITRES": "-4"}, folder=tmp_path)
    with pytest.raises(UserError, match=fact):
        garden(flags=("--rain-tank.litres", "-4"), folder=tmp_path)


def test_refuses_an_unknown_variable_and_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ACTORQ_RAIN_TANK__LITERS .*'ACTORQ_RAIN_TANK__LITRES'"):
        garden(environment={"ACTORQ_RAIN_TANK__LITERS": "4", "OTHER": "1"}, folder=tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "LEARNER_SERVICE_HOST",
        "LEARNER_SERVICE_PORT",
        "LEARNER_SERVICE_PORT_GRPC",
        "LEARNER_PORT",
        "LEARNER_PORT_50051_TCP",
        "LEARNER_PORT_50051_TCP_PROTO",
        "LEARNER_PORT_50051_TCP_PORT",
        "LEARNER_PORT_50051_TCP_ADDR",
    ],
)
def test_ignores_variables_that_kubernetes_sets_for_services(name: str, tmp_path: Path) -> None:
    assert garden(environment={f"ACTORQ_{name}": "tcp://10.0.0.1:50051"}, folder=tmp_path) == Garden()


def test_accepts_settings_of_other_programs_but_checks_their_names() -> None:
    settings.check_environment((Garden,), {"ACTORQ_STORE": "x"}, elsewhere=("store",))
    with pytest.raises(UserError, match=r"ACTORQ_STOER .*'ACTORQ_STORE'"):
        settings.check_environment((Garden,), {"ACTORQ_STOER": "x"}, elsewhere=("store",))
    assert settings.share({"owner": "a", "store": "x"}, "process", [Garden], ("store",)) == [{"owner": "a"}]


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (("--rain-tank.liters", "4"), r"'--rain-tank\.liters'.*'--rain-tank\.litres'"),
        (("--rain-tank.litres",), r"--rain-tank\.litres.* one "),
        (("two\nlines",), r"'two\\nlines'"),
        (("--own", "me"), "'--own'.*'--owner'"),
    ],
)
def test_reports_a_wrong_flag_in_one_line(flags: tuple[str, ...], fact: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{fact}.*garden --help") as caught:
        garden(flags=flags, folder=tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "watered"),
    [
        (("--watered",), True),
        (("--no-watered",), False),
        (("--watered", "false"), False),
        (("--watered=False",), False),
        (("--no-watered", "--watered", "yes"), True),
        (("--watered=on", "--owner", "false"), True),
    ],
)
def test_a_switch_also_accepts_a_value(flags: tuple[str, ...], watered: bool, tmp_path: Path) -> None:
    assert garden(flags=flags, folder=tmp_path).watered is watered


# Ten lines that stand for 10^9 values.
BOMB = b"a0: &a0 [1]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (number, number, b", ".join([b"*a%d" % (number - 1)] * 10)) for number in range(1, 10)
)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"a: b: c", "YAML.*mapping"),
        (b"owner: \xff", "YAML.*utf-8.*0xff"),
        (b"owner: !!python/object:os.system x", "YAML.*constructor"),
        (b"[" * 5000, "YAML.*nested"),
        (b"seed: 1\nseed: 2\n", "YAML.*line 2.*'seed'.*twice"),
        (b"actor: {a: 1, b: 2, a: 3}\n", "YAML.*line 1.*'a'.*twice"),
        (b"actor: &a\n  x: *a\n", "YAML.*alias"),
        (BOMB, "YAML.*100,000"),
        (b"planted: 2026-13-45", "YAML.*month"),
        (b"planted: !!timestamp soon", "YAML"),
        (b"- herbs", "list"),
    ],
)
def test_refuses_a_file_without_settings_in_one_line(content: bytes, fact: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"--config.*{path}.*{fact}") as caught:
        settings.from_file(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--config.*{tmp_path / 'absent.yaml'}.*No such file"):
        settings.from_file(tmp_path / "absent.yaml")


def test_an_empty_file_holds_no_settings(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert settings.from_file(tmp_path / "empty.yaml") == {}


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Garden().owner = "someone else"  # type: ignore[misc]


def test_the_help_shows_descriptions_defaults_and_forms_of_values(capsys: pytest.CaptureFixture[str]) -> None:
    parser = OneLineParser(prog="garden")
    settings.add_flags(parser, Garden)
    with pytest.raises(SystemExit, match=r"^0$"):
        parser.parse_args(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for entry in (
        "rain_tank:",
        "What holds the water.",
        "--kind {herbs,trees} what grows (default: herbs)",
        "--watered, --no-watered",
        "--rain-tank.litres N volume in litres (default: 100)",
        "--rain-tank.fill X share that is full (default: 0.5)",
        "--rain-tank.lid PATH drawing of the lid (default: none)",
        "--rain-tank.pipes N,N,.. widths, 100% in mm (default: 10,20)",
        "--rain-tank.pump VALUE name of the pump (default: by hand)",
        "--rain-tank.power-watts X power of the pump; unknown when none (default: none)",
    ):
        assert entry in shown


def test_writing_and_reading_yaml_restores_equal_settings(tmp_path: Path) -> None:
    original = Garden(
        owner="Ada: 'yes'\nno",
        watered=False,
        rain_tank=Tank(fill=1e-7, lid=Path("a b/lid.svg"), pipes=(1, 2, 3), power_watts=40),
    )
    path = tmp_path / "settings.yaml"
    path.write_text(settings.to_yaml(original), encoding="utf-8")
    assert settings.build(Garden, settings.from_file(path)) == original


def test_a_file_can_be_overridden_partially_and_is_not_modified() -> None:
    lower = {"rain_tank": {"litres": 7, "fill": 0.7}}
    result = settings.build(Garden, lower, {"rain_tank": {"litres": 8}})
    assert result.rain_tank == Tank(litres=8, fill=0.7)
    assert lower == {"rain_tank": {"litres": 7, "fill": 0.7}}


def test_accepts_aliases_and_merged_sections_of_usual_size() -> None:
    text = "base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\nlist: [*base, *base]\n"
    assert settings.from_yaml(text) == {
        "base": {"a": 1, "b": 2},
        "other": {"a": 1, "b": 3},
        "list": [{"a": 1, "b": 2}] * 2,
    }
