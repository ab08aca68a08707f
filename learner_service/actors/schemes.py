"""Defines the schemes that may act in a run, and the policy of a receipt that represents its actors."""

from collections import Counter
from collections.abc import Sequence

from actorq.domain.policy import AUTO, FALLBACK, FLOAT_SCHEMES, FP32, SCHEMES, PolicyDescriptor
from actorq.domain.status import ActorStatus


def acting_schemes(scheme: str) -> tuple[str, ...]:
    """The schemes whose policies may act in a run with this scheme.

    With "auto" each actor chooses. Otherwise actors use the run's scheme. They use fp32 when no layer can be quantized,
    or when no quantized policy passes the fidelity gate. An actor uses the fallback scheme when its processor computes
    the run's scheme inexactly.
    """
    if scheme == AUTO:
        return SCHEMES
    return tuple(dict.fromkeys((scheme, FP32, *(() if scheme in FLOAT_SCHEMES else (FALLBACK,)))))


def policy_of(
    scheme: str, policies: Sequence[PolicyDescriptor], actors: Sequence[ActorStatus]
) -> PolicyDescriptor | None:
    """The policy of a version that represents the run; None when there is none in the run's scheme.

    With "auto" it is the policy in the scheme that most actors report. The order of `SCHEMES` breaks ties. Before any
    report, the first policy represents the run.
    """
    if scheme != AUTO:
        return next((policy for policy in policies if policy.scheme == scheme), None)
    reports = Counter(actor.report.scheme for actor in actors if actor.role == "actor" and actor.report is not None)
    # Actors report the effective scheme: a policy of another scheme may have become fp32.
    candidates = {policy.effective_scheme: policy for policy in policies}
    candidates |= {policy.scheme: policy for policy in policies}
    reported = [name for name in SCHEMES if reports[name] and name in candidates]
    best = max(reported, key=lambda name: reports[name], default=None)
    return candidates[best] if best is not None else next(iter(policies), None)
