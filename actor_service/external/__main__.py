"""Entry point of the policy server in a container, as `actorq serve`: `python -m actor_service.external PATH`."""

from actorq.start import start

if __name__ == "__main__":
    start("actor_service.external.serve:command", sigterm=0, extra="actor")
