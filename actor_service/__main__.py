"""Entry point of the actor service: `python -m actor_service`."""

from actorq.start import start

if __name__ == "__main__":
    start("actor_service.process:run_actor", sigterm=0, extra="actor")
