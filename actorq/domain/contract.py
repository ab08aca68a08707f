"""The number of the contract between the services: what columns, spaces and graphs mean.

It changes when a service of the earlier number would misread messages of the new one. Both peers of a run have one
number. 1 is that of peers that name none.
"""

from actorq.errors import ConflictError, UserError

CONTRACT = 3


def check_contract(peer: str, number: int) -> None:
    """Raise ConflictError unless a peer has our contract. number: 0 if it names none."""
    if (number or 1) != CONTRACT:
        raise ConflictError(
            f"{peer} has contract {number or 1} of ActorQ's services, and this process has contract {CONTRACT}: run "
            "all services with one version of ActorQ"
        )


def check_written(what: str, number: int) -> None:
    """Raise UserError for a file of a later contract. Earlier ones are read. number: 0 or 1 of files that name none."""
    if number > CONTRACT:
        raise UserError(
            f"{what} was written with contract {number} of ActorQ, and this version reads contracts up to {CONTRACT}: "
            "use the version of ActorQ that wrote it"
        )
