"""Entry point of the quantizer service: `python -m quantizer_service`."""

from actorq.start import start

if __name__ == "__main__":
    start("quantizer_service.process:run", sigterm=0, extra="quantizer")
