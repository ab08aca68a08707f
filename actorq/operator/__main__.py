"""Entry point of the operator: `python -m actorq.operator`."""

from actorq.start import start

if __name__ == "__main__":
    start("actorq.operator.process:run", sigterm=0, extra="operator")
