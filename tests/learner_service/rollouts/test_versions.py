"""The lag of a version is the number of publications after it, for any version numbers."""

import json

import numpy as np

from learner_service.rollouts import PublishedVersions


def published(*versions: int, max_lag: int = 3) -> PublishedVersions:
    made = PublishedVersions(max_lag)
    for version in versions:
        made.add(version)
    return made


def lags(versions: PublishedVersions, *of: int) -> list[int]:
    """Those of all together, which each alone has too."""
    found = [int(lag) for lag in versions.lag(np.array(of, np.int64))]
    assert [versions.lag_of(version) for version in of] == found
    return found


def restarted(versions: PublishedVersions) -> PublishedVersions:
    """What the next learner has from the checkpoint."""
    again = PublishedVersions(versions.max_lag)
    again.load_state(json.loads(json.dumps(versions.state())))
    return again


def test_lags_count_publications_not_version_numbers() -> None:
    versions = published(1, 2, 1026)
    assert lags(versions, 1, 2, 1026, 1027) == [2, 1, 0, 0]


def test_lags_are_bounded_by_the_list() -> None:
    versions = published(*range(1, 100))
    assert lags(versions, 1, 95, 96, 99) == [4, 4, 3, 0]
    assert len(versions.state()["versions"]) == 4


def test_nothing_lags_before_the_first_publication() -> None:
    assert lags(published(), 1) == [0]


def test_a_lost_version_lags_behind_the_publication_that_repeats_it() -> None:
    # The killed learner published 3 to 12 after its checkpoint.
    versions = restarted(published(1, 2))
    versions.add(1027)
    assert lags(versions, 2, 3, 12, 1027) == [1, 0, 0, 0]
    for version in range(1028, 1034):
        versions.add(version)
    # The sixth publication after the restart repeats version 8.
    assert lags(versions, 1, 2, 3, 4, 5, 7, 8, 12) == [4, 4, 4, 4, 3, 1, 0, 0]
    assert lags(versions, 1027, 1032, 1033) == [4, 1, 0]
    assert lags(restarted(versions), 5, 12, 1032) == [3, 0, 1]


def test_lags_count_publications_across_an_orderly_restart() -> None:
    versions = restarted(published(1, 2, 3))
    versions.add(1027)
    versions.add(1028)
    assert lags(versions, 2, 3, 1027, 1028) == [3, 2, 1, 0]
