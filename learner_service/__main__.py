"""Entry point of the learner service: `python -m learner_service`."""

from actorq.start import start

if __name__ == "__main__":
    start("learner_service.process:run", sigterm=6, extra="learner")
