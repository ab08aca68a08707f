"""A run whose updates use the quantized policy of its actors."""

import signal
from pathlib import Path

from tests.integration.training_run import TrainingRun


def test_updates_use_the_quantized_policy_and_the_status_keeps_the_first_such_update(tmp_path: Path) -> None:
    flags = ("--learner.quantization-aware-after", "0.01", "--target-return", "501", "--checkpoint.period-s", "0.5")
    training = TrainingRun.start(tmp_path / "run", "--seed", "3", *flags)
    status = training.until(lambda status: status.quantization_aware_since is not None and status.updates > 200)
    since = status.quantization_aware_since
    assert since is not None
    # More than 1% of the 100,000 steps are collected before the first update.
    assert status.environment_steps >= 1000
    training.signal(signal.SIGINT)
    code, printed = training.finish()
    assert code == 130, printed
    before = training.summary()
    assert before["quantization_aware_since"] == since
    again = TrainingRun.start(training.directory, "--resume")
    status = again.until(lambda status: status.updates > before["updates"] + 100)
    assert status.quantization_aware_since == since
    again.signal(signal.SIGINT)
    again.finish()
