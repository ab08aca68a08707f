"""Watch a run: print each evaluation, keep the best policy, and stop the run once it is good enough.

    actorq train &
    python examples/watch.py runs/NAME 200

`runs/NAME/addresses.json` has the addresses of the services. Mutual TLS needs certificates.
"""

import json
import sys
from pathlib import Path

from actorq.client import LearnerClient, QuantizerClient


def main(run: Path, enough: float) -> float:
    """Watch until an evaluation returns at least `enough`, or the run ends. Returns the best return."""
    addresses = json.loads((run / "addresses.json").read_text(encoding="utf-8"))
    best, seen = float("-inf"), 0
    with (
        LearnerClient(addresses["learner"]) as learner,
        QuantizerClient(addresses["quantizer"]) as quantizer,
    ):
        # The stream continues until the run is over. It survives restarts of the learner.
        for status in learner.watch(period_s=0.2):
            evaluation = status.evaluation
            if evaluation is None or evaluation.policy_version == seen:
                continue
            seen = evaluation.policy_version
            name = f"v{seen} {evaluation.scheme}"
            print(f"{status.environment_steps:>9,} steps  {name}  return {evaluation.mean_return:.1f}")
            if evaluation.mean_return > best:
                best = evaluation.mean_return
                # The quantizer keeps the best version permanently.
                model = quantizer.get(evaluation.scheme, seen).model
                Path("best.onnx").write_bytes(model)
            if best >= enough and not status.state.final:
                learner.stop()
    print(f"best return {best:.1f}; best.onnx has its policy")
    return best


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
