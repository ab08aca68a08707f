"""Which faults and milestones become events, and how often."""

import pytest

from actorq.domain.status import ActorStatus, RunState
from actorq_apps.cluster.diagnosis import Fault
from actorq_apps.operator.status.conditions import new_status
from actorq_apps.operator.status.events import new_events
from actorq_apps.operator.status.observed_run import ObservedRun
from tests.actorq_apps.cluster.cluster_objects import Object, pod
from tests.builders.run_status import run_status

NOW = 1_800_000_000.0
ACTING = (ActorStatus("actor-1", "actor", 0, True, None),)


def image(subject: str, text: str = "cannot pull image x:1") -> Fault:
    return Fault(subject, text, reason="ImagePull")


class Story:
    """The events of a run, by name, over successive reconciliations. An existing name is not created again."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.now = NOW
        self._status: Object = {}

    def observe(self, fault: Fault | None, seconds: float = 5.0) -> None:
        """Reconcile a run with this fault, or a healthy run."""
        self.now += seconds
        metadata = {"name": "tiny", "namespace": "lab", "uid": "u", "generation": 1}
        resource = {"metadata": metadata, "spec": {}, "status": self._status}
        pods = [pod(name, "actor") for name in ("tiny-actor-abc", "tiny-actor-def")]
        seen = ObservedRun(
            resource, self.now, live=run_status(actors=ACTING), pods=[*pods, pod("tiny-learner-0", "learner")]
        )
        self._status = new_status(seen, fault)
        for each in new_events(seen, self._status, fault):
            self.told.setdefault(each["metadata"]["name"], each["message"])

    @property
    def faults(self) -> list[str]:
        return [each for each in self.told.values() if "cannot" in each or "crash" in each]


@pytest.fixture
def story() -> Story:
    found = Story()
    found.observe(None)
    return found


def test_reports_a_second_fault_with_the_same_reason(story: Story) -> None:
    story.observe(image("pod tiny-actor-abc"))
    story.observe(image("pod tiny-learner-0"))
    assert story.faults == ["pod tiny-actor-abc cannot pull image x:1", "pod tiny-learner-0 cannot pull image x:1"]
    story.observe(image("pod tiny-learner-0", "cannot pull image y"))
    assert len(story.faults) == 3


def test_reports_a_fault_of_several_actors_once(story: Story) -> None:
    for restarts, name in enumerate(["tiny-actor-abc", "tiny-actor-def", "tiny-actor-abc"]):
        story.observe(Fault(f"pod {name}", f"is crash looping ({restarts} restarts)", reason="CrashLoop"))
        story.observe(None)
    assert len(story.faults) == 1


def test_reports_a_returning_fault_again_after_ten_minutes_of_work(story: Story) -> None:
    story.observe(image("pod tiny-learner-0"))
    story.observe(None)
    story.observe(image("pod tiny-learner-0"), 500)
    assert len(story.faults) == 1
    story.observe(None)
    story.observe(image("pod tiny-learner-0"), 600)
    assert len(story.faults) == 2


def test_a_very_short_run_still_reports_that_it_trained() -> None:
    resource = {"metadata": {"name": "tiny", "namespace": "lab", "uid": "u"}, "spec": {}, "status": {}}
    seen = ObservedRun(resource, NOW, live=run_status(state=RunState.SOLVED, elapsed_s=3.0))
    told = [(each["reason"], each["message"]) for each in new_events(seen, new_status(seen, None), None)]
    assert [reason for reason, _ in told] == ["Started", "Solved"]
    assert told[0][1].endswith(" 2027-01-15T07:59:57Z")
