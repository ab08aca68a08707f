"""What the quantizer counts of its work."""

from dataclasses import replace

import pytest

from actorq.domain.policy import FidelityReport, PolicyDescriptor, RefusedRung
from quantizer_service.serving.emission_counts import EmissionCounts

FIDELITY = FidelityReport(256, 0.1, 0.2, 0.01, 0.02, 0.99, ())
INT8 = PolicyDescriptor("run", 3, 100, "int8", b"", 1_000, 4_000, 0.0, FIDELITY)


def test_policies_are_counted_by_scheme() -> None:
    counts = EmissionCounts()
    for version in (3, 4):
        int8 = replace(INT8, version=version)
        counts.note((int8, replace(int8, scheme="fp32")), seconds=0.002)
    counts.note((replace(INT8, version=5),), seconds=0.2)
    assert counts.policies == {"int8": 3, "fp32": 2}
    buckets, total = counts.seconds.snapshot()
    assert dict(buckets)[0.0025] == 2
    assert dict(buckets)[float("inf")] == 3
    assert total == pytest.approx(0.204)


def test_what_the_gate_refused_is_counted_by_scheme() -> None:
    counts = EmissionCounts()
    refused = replace(INT8, fidelity=replace(FIDELITY, refused=(RefusedRung((), 0.1, 0.2, 0.3),) * 2))
    counts.note((refused, replace(INT8, scheme="fp32")), seconds=0.002)
    counts.note((refused,), seconds=0.002)
    assert counts.refusals == {"int8": 4, "fp32": 0}
