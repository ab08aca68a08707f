"""Which schemes may act in a run, and which one of a receipt's policies stands for what its actors do."""

from collections import Counter
from collections.abc import Sequence

from actorq.domain.policy import AUTO, FALLBACK, FLOAT_SCHEMES, FP32, SCHEMES, PolicyDescriptor
from actorq.domain.status import ActorStatus


def acting_schemes(scheme: str) -> tuple[str, ...]:
    """The schemes that policies of a run with this scheme may have acted in.

    With "auto" every actor chooses. Otherwise it is the run's own, or fp32 where the quantizer found nothing to
    quantize or the fidelity gate let no quantized policy through. Actors whose processors do not compute the run's
    scheme as they should act in the fallback.
    """
    if scheme == AUTO:
        return SCHEMES
    return tuple(dict.fromkeys((scheme, FP32, *(() if scheme in FLOAT_SCHEMES else (FALLBACK,)))))


def policy_of(
    scheme: str, policies: Sequence[PolicyDescriptor], actors: Sequence[ActorStatus]
) -> PolicyDescriptor | None:
    """The one of a version's policies that stands for the run; None when there is none in its scheme.

    With "auto" it is the one in the scheme that most actors report, the first of equals in the order of `SCHEMES`; the
    first policy while nobody has reported one of these.
    """
    if scheme != AUTO:
        return next((policy for policy in policies if policy.scheme == scheme), None)
    reports = Counter(actor.report.scheme for actor in actors if actor.role == "actor" and actor.report is not None)
    # An actor reports what acts: where there is no fp32 policy, "fp32" means one that came to nothing else.
    candidates = {policy.effective_scheme: policy for policy in policies}
    candidates |= {policy.scheme: policy for policy in policies}
    reported = [name for name in SCHEMES if reports[name] and name in candidates]
    best = max(reported, key=lambda name: reports[name], default=None)
    return candidates[best] if best is not None else next(iter(policies), None)
