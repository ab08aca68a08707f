"""Entry point of the operator: `python -m actorq_apps.operator`."""

from actorq.start import start

if __name__ == "__main__":
    start("actorq_apps.operator.process:run", sigterm=0, extra="operator")
