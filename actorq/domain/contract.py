"""The version number of the contract between the services: the meaning of columns, spaces and graphs.

It changes when a service with the earlier number would misread new messages. All peers of a run need the same number.
A peer that sends no number has number 1.
"""

from actorq.errors import ConflictError, UserError

CONTRACT = 3


def check_contract(peer: str, number: int) -> None:
    """Raise ConflictError unless a peer has our contract. number: the peer's contract; 0 if it sent none."""
    if (number or 1) != CONTRACT:
        raise ConflictError(
            f"{peer} has contract {number or 1} of ActorQ's services, and this process has contract {CONTRACT}: run "
            "all services with one version of ActorQ"
        )


def check_written(what: str, number: int) -> None:
    """Raise UserError for a file of a later contract. number: the file's contract; 0 or 1 if it names none."""
    if number > CONTRACT:
        raise UserError(
            f"{what} was written with contract {number} of ActorQ, and this version reads contracts up to {CONTRACT}: "
            "use the version of ActorQ that wrote it"
        )
