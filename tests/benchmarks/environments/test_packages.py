"""The benchmark of foreign packages: what it installs, and its verdict on given figures."""

import pytest

from benchmarks.environments.packages import PACKAGES, targets


def test_twelve_packages_with_pinned_versions() -> None:
    assert len({package.name for package in PACKAGES}) == 12
    assert all(requirement.count("==") == 1 for package in PACKAGES for requirement in package.requirements)


@pytest.mark.parametrize(("mean_return", "met"), [(2.9, True), (2.5, False)])
def test_a_policy_must_be_above_random_actions_by_two_standard_errors(mean_return: float, met: bool) -> None:
    # Variances of 1/3 over 4 episodes, both.
    spread = (-0.5, -0.5, 0.5, 0.5)
    row = {"package": "minigrid", "random_returns": [2 + each for each in spread]}
    (target,) = targets({"packages": [{**row, "returns": [mean_return + each for each in spread]}]})
    assert target.met == met
    assert target.bound == pytest.approx(2 + 2 * (1 / 6) ** 0.5)
