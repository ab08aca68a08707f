"""What a relay tells Prometheus, read when it is asked for."""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric

from actorq.telemetry.metrics import labelled_counter, labelled_gauge
from quantizer_service.serving.relay import Relay


def relay_metrics(relay: Relay) -> Iterator[Metric]:
    """The families of one relay; called on the event loop."""
    yield labelled_gauge(
        "actorq_relay_subscribers",
        "Streams of policies that are open.",
        _SCHEME,
        _labelled(relay.subscribers_by_scheme),
    )
    yield labelled_gauge(
        "actorq_relay_upstream_connected",
        "1 while the stream from the upstream is open, 0 while it is tried again; of the schemes that are watched.",
        _SCHEME,
        _labelled(relay.connected),
    )
    yield labelled_counter("actorq_relay_policies", "Policies handed on.", _SCHEME, _labelled(relay.relayed))
    yield labelled_counter(
        "actorq_relay_refused", "Policies of the upstream that were refused.", _SCHEME, _labelled(relay.refused)
    )
    yield labelled_gauge(
        "actorq_relay_policy_version",
        "Version of the newest policy.",
        _SCHEME,
        _labelled(relay.versions),
    )
    yield labelled_gauge(
        "actorq_relay_lag_seconds",
        "From the learner's snapshot to the newest policy being here, by both clocks.",
        _SCHEME,
        _labelled(relay.lag_seconds),
    )


_SCHEME = ("scheme",)


def _labelled(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(scheme,): value for scheme, value in values.items()}
