"""A whole actor whose environment hangs: it ends, so that whoever started it starts it again."""

import os
import re
import subprocess
import sys
from pathlib import Path

from actorq.process import EXIT_HUNG
from tests.actor_service.actor_peers import ScriptedLearner, ScriptedQuantizer, membership, serving
from tests.actor_service.actor_policies import constant_policy

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0


def test_an_actor_whose_environment_hangs_ends_with_its_own_exit_code() -> None:
    learner, quantizer = ScriptedLearner(), ScriptedQuantizer()
    # Its third step never returns.
    learner.membership = membership(environment_id="environment_doubles:Hanging-v0", segment_length=8)
    with serving(learner) as learner_address, serving(quantizer) as quantizer_address:
        actor = subprocess.Popen(
            [sys.executable, "-m", "actor_service", "--learner", learner_address, "--quantizer", quantizer_address]
            + ["--actor.environment-timeout-s", "2", "--actor.allow-modules", "environment_doubles"],
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/user_modules"},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            quantizer.watched()
            quantizer.serve(constant_policy([1.0, 0.0, 0.0], observation_size=2))
            _, log = actor.communicate(timeout=DEADLINE_S)
        finally:
            actor.kill()
            actor.wait()
    assert actor.returncode == EXIT_HUNG
    assert re.search(
        r"an environment has not returned from a call for \d+ s: ending this process with exit code 5", log
    )
    # And where it hangs.
    assert "environment_doubles.py" in log
