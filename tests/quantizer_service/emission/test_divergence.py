"""KL divergences compared with their definition, and their values for outputs that are far apart."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from actorq.domain.signature import Signature, signature_of
from actorq.errors import UserError
from quantizer_service.emission.divergence import (
    ENTRY_POINTS,
    LARGEST,
    divergence,
    installed_divergences,
    tells_distribution,
)
from quantizer_service.emission.reference import Outputs
from tests.builders.packages import install_package

Array = NDArray[np.float64]


def array(*rows: tuple[float, ...]) -> Array:
    return np.array(rows, np.float64)


def logits(*rows: tuple[float, ...]) -> Outputs:
    return {"logits": array(*rows)}


def gaussian(mean: Array, log_std: Array) -> Outputs:
    return {"actions": np.zeros_like(mean), "mean": mean, "log_std": log_std}


def told_by(outputs: Outputs, discrete: bool | None = None) -> Signature:
    return signature_of(["observations"], outputs, discrete)


def found(expected: Outputs, emitted: Outputs) -> list[float]:
    result = divergence(expected, emitted, told_by(expected))
    assert result is not None
    assert result.dtype == np.float64
    return list(map(float, result))


def test_the_divergence_of_logits_is_that_of_their_softmax() -> None:
    expected = logits((np.log(0.5), np.log(0.5)), (7.0 + np.log(0.9), 7.0 + np.log(0.1)))
    emitted = logits((np.log(0.25), np.log(0.75)), (np.log(0.9), np.log(0.1)))

    by_hand = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert found(expected, emitted) == pytest.approx([by_hand, 0.0], abs=1e-15)
    # The FP32 policy is the first argument.
    assert found(emitted, expected)[0] == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5))


def test_the_divergence_of_gaussians_is_the_integral_of_its_definition_summed_over_components() -> None:
    rng = np.random.default_rng(1)
    mean, log_std, emitted_mean, emitted_log_std = 0.7 * rng.standard_normal((4, 5, 2))
    x = np.linspace(-30, 30, 400_001)

    def log_density(mean: float, log_std: float) -> Array:
        density: Array = -0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
        return density

    integrals = []
    for row in range(5):
        total = 0.0
        for j in range(2):
            log_p = log_density(mean[row, j], log_std[row, j])
            log_q = log_density(emitted_mean[row, j], emitted_log_std[row, j])
            total += float(np.trapezoid(np.exp(log_p) * (log_p - log_q), x))
        integrals.append(total)
    assert found(gaussian(mean, log_std), gaussian(emitted_mean, emitted_log_std)) == pytest.approx(integrals, rel=1e-6)


def test_tiny_divergences_keep_their_digits() -> None:
    zeros = np.zeros((1, 3))
    assert found(gaussian(zeros, zeros), gaussian(zeros + 1e-7, zeros)) == pytest.approx([1.5e-14])
    assert found(gaussian(zeros, zeros), gaussian(zeros, zeros + 1e-5)) == pytest.approx([3e-10], rel=1e-4)


@pytest.mark.parametrize("log_std", [-1e30, -1000.0, 0.0, 1000.0, 1e30])
def test_equal_distributions_of_any_scale_have_no_divergence(log_std: float) -> None:
    mean, scale = np.array([[3.0, -1e38]]), np.full((1, 2), log_std)
    assert found(gaussian(mean, scale), gaussian(mean.copy(), scale.copy())) == [0.0]
    assert found(logits((1e38, -3e38, log_std)), logits((1e38, -3e38, log_std))) == [0.0]


def test_disjoint_distributions_have_an_infinite_divergence() -> None:
    mean, narrow = np.zeros((1, 2)), np.full((1, 2), -1000.0)
    assert found(gaussian(mean, narrow), gaussian(mean + 1e-3, narrow)) == [np.inf]
    assert found(gaussian(mean, np.zeros((1, 2))), gaussian(mean, narrow)) == [np.inf]
    assert found(logits((3e38, 0.0)), logits((0.0, 3e38))) == [np.inf]
    edge = np.sqrt(2 * LARGEST)
    one = np.zeros((1, 1))
    assert np.isfinite(found(gaussian(one, one), gaussian(one + 0.999 * edge, one))).all()
    assert found(gaussian(one, one), gaussian(one + 1.001 * edge, one)) == [np.inf]


def test_a_divergence_is_never_negative() -> None:
    rng = np.random.default_rng(2)
    expected = {"logits": rng.standard_normal((10_000, 6))}
    emitted = {"logits": expected["logits"] + 1e-9 * rng.standard_normal((10_000, 6))}
    assert min(found(expected, emitted)) >= 0


VALUES, ACTIONS = np.zeros((4, 3)), np.zeros((4, 2))


@pytest.mark.parametrize(
    "outputs",
    [
        {"q_values": VALUES},
        {"logits": np.zeros((4, 1))},
        {"mean": VALUES},
        {"log_std": VALUES},
        {"mean": VALUES, "log_std": np.zeros((4, 1))},
        {"actions": ACTIONS, "logits": VALUES},
        {"actions": ACTIONS, "mean": VALUES, "log_std": VALUES},
    ],
    ids=["values", "one logit", "only mean", "only log_std", "other components", "auxiliary logits", "auxiliary mean"],
)
def test_other_outputs_do_not_describe_a_distribution(outputs: Outputs) -> None:
    assert not tells_distribution(outputs, told_by(outputs))
    assert divergence(outputs, outputs, told_by(outputs)) is None


def test_a_gaussian_does_not_describe_discrete_actions() -> None:
    outputs = {"q_values": VALUES, "mean": VALUES, "log_std": VALUES}
    assert not tells_distribution(outputs, told_by(outputs, discrete=True))
    assert divergence(outputs, outputs, told_by(outputs, discrete=True)) is None
    assert tells_distribution(outputs, told_by(outputs, discrete=False))


def test_divergences_of_several_parts_add_up() -> None:
    parts = [slice(0, 2), slice(2, 5)]
    expected, emitted = logits((0.0, 1.0, 2.0, 0.0, -1.0)), logits((1.0, 1.0, 0.0, 0.0, -1.0))
    apart = [
        found({"logits": expected["logits"][:, part]}, {"logits": emitted["logits"][:, part]})[0] for part in parts
    ]
    together = divergence(expected, emitted, told_by(expected), parts)
    assert together is not None
    assert together[0] == pytest.approx(sum(apart))
    components = gaussian(array((0.5,)), array((-1.0,))), gaussian(array((0.7,)), array((-0.9,)))
    expected, emitted = {**expected, **components[0]}, {**emitted, **components[1]}
    both = divergence(expected, emitted, told_by(expected), parts)
    assert both is not None
    assert both[0] == pytest.approx(sum(apart) + found(*components)[0])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package has divergences, of which some cannot be used."""
    functions = "def good(one, other): return abs(one - other).sum(1)\ndef one(one, other): return 1.0\n"
    source = f"{functions}def raises(one, other): return one / 0 / {{}}\n"
    points = {f"of_{name}": f"distances:{name}" for name in ("good", "one", "raises", "missing")}
    install_package(tmp_path, "distances", source, ENTRY_POINTS, {**points, "gone": "distances_gone:x"})
    monkeypatch.syspath_prepend(tmp_path)
    installed_divergences.cache_clear()
    yield
    installed_divergences.cache_clear()


@pytest.mark.usefixtures("installed")
def test_the_divergence_of_a_package_is_used_or_refused_in_one_line() -> None:
    outputs = {"actions": ACTIONS, "of_good": ACTIONS}
    assert found(outputs, {**outputs, "of_good": ACTIONS + 1}) == [2.0] * len(ACTIONS)
    for name in ("of_one", "of_raises", "of_missing", "gone"):
        outputs = {"actions": ACTIONS, name: ACTIONS}
        with pytest.raises(UserError, match=f"^divergence {name}: .*distances") as told:
            found(outputs, outputs)
        assert "\n" not in str(told.value)
