"""Any number of callers leaves the event loop time for other work."""

from actorq.domain.status import RunState, RunStatus
from learner_service.reporting.statuses import Statuses
from tests.builders.run_status import run_status
from tests.learner_service.learner_parts import ManualClock


class Run:
    """Each status takes 0.1 s, and has the number of statuses so far as its updates."""

    def __init__(self) -> None:
        self.clock, self.made, self.state = ManualClock(), 0, RunState.TRAINING
        self.statuses = Statuses(self._make, lambda: self.state, self.clock)

    def _make(self) -> RunStatus:
        self.clock.now += 0.1
        self.made += 1
        return run_status(updates=self.made, state=self.state)


def test_callers_that_come_all_the_time_take_a_fifth_of_the_time() -> None:
    run = Run()
    while run.clock.now < 100.0:
        status, message = run.statuses.get()
        assert message.updates == status.updates == run.made
        run.clock.now += 0.001
    assert 18.0 < 0.1 * run.made < 22.0


def test_a_few_callers_get_a_fresh_status_each() -> None:
    run = Run()
    assert [run.statuses.get()[0].updates for _ in range(5)] == [1, 2, 3, 4, 5]


def test_a_new_state_is_never_missed() -> None:
    run = Run()
    for _ in range(100):
        run.statuses.get()
    made = run.made
    run.state = RunState.SOLVED
    assert run.statuses.get()[0].state is RunState.SOLVED
    assert run.made == made + 1
