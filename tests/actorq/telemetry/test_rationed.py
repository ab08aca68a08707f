"""Rationed answers leave the thread time for other work."""

from actorq.telemetry.rationed import Rationed


class Service:
    """Each answer takes 0.1 s. It is the number of answers so far, and the state."""

    def __init__(self) -> None:
        self.now, self.made, self.state = 0.0, 0, "training"
        self.answers = Rationed(self._make, lambda last: last[1] != self.state, lambda: self.now)

    def _make(self) -> tuple[int, str]:
        self.now += 0.1
        self.made += 1
        return self.made, self.state


def test_constant_callers_use_a_fifth_of_the_time() -> None:
    service = Service()
    while service.now < 100.0:
        assert service.answers.get() == (service.made, "training")
        service.now += 0.001
    assert 18.0 < 0.1 * service.made < 22.0


def test_a_few_callers_get_a_fresh_answer_each() -> None:
    service = Service()
    assert [service.answers.get()[0] for _ in range(5)] == [1, 2, 3, 4, 5]


def test_never_returns_an_outdated_answer() -> None:
    service = Service()
    for _ in range(100):
        service.answers.get()
    made = service.made
    service.state = "solved"
    assert service.answers.get() == (made + 1, "solved")
