"""The benchmark of foreign packages: what it installs, and its verdict on given figures."""

import pytest

from benchmarks.environments.packages import PACKAGES, targets


def test_twelve_packages_with_pinned_versions() -> None:
    assert len({package.name for package in PACKAGES}) == 12
    assert all(requirement.count("==") == 1 for package in PACKAGES for requirement in package.requirements)


@pytest.mark.parametrize(("mean_return", "met"), [(2.9, True), (2.5, False), (-1e30, False)])
def test_a_policy_must_be_above_random_actions_by_two_standard_errors(mean_return: float, met: bool) -> None:
    # A mean of 2 and a variance of 1/3, over 4 and 20 episodes.
    row = {"package": "minigrid", "random_returns": [1.5, 1.5, 2.5, 2.5], "mean_return": mean_return}
    (target,) = targets({"packages": [row]})
    assert target.met == met
    assert target.bound == pytest.approx(2 + 2 * (1 / 3) ** 0.5 * 0.3**0.5)
