"""`actorq restore`: prepares a copied or restored folder of a run, so that only its learner continues the run."""

import sys
import uuid
from pathlib import Path

from actorq.config.parser import OneLineParser
from actorq.domain.lineage import unique_number
from actorq.errors import UserError
from actorq.process import EXIT_OK
from actorq.statefiles.documents import copy_of, write_document, write_twice
from actorq.statefiles.highwater import LEAP_OF_COPIES, HighWaterMark
from learner_service.files import OBJECT_STORAGE
from learner_service.run.identity import locked, read_run_file

_DESCRIPTION = """Continue a run from a copy of its folder, such as a restored snapshot of a volume. Stop the learner
of this folder first. The run gets a new epoch, with numbers of versions and actors far above those of the copy. The
learners of all other copies are refused from then on."""


def restore(directory: Path) -> tuple[str, int, int]:
    """Give the run in this folder a new epoch. Returns its id, the epoch, and the version above which it continues.

    Raises UserError when a learner uses the folder, and when there is no run in it.
    """
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder; give the run directory of a learner")
    with locked(directory):
        run = read_run_file(directory)
        if run is None:
            raise UserError(
                f"{directory} has no run.json, so no learner has started a run there; give a learner's run directory"
            )
        epoch = unique_number(run.get("epoch", 0))
        published = directory / "published.json"
        mark = HighWaterMark(published, 0).floor + LEAP_OF_COPIES
        write_document(published, {"mark": mark})
        volume = directory / OBJECT_STORAGE
        if volume.exists() or copy_of(volume).exists():
            write_twice(volume, {"volume": uuid.uuid4().hex, "takes_over": True})
        # Written last, so that a killed restore is repeated as a whole.
        process = unique_number(run.get("process", run["lives"]))
        write_twice(directory / "run.json", {**run, "process": process, "lineage": [], "epoch": epoch})
    return run["run_id"], epoch, mark


def command() -> int:
    """Restore the run that the command line names."""
    parser = OneLineParser(prog="actorq restore", usage="actorq restore RUN_DIR", description=_DESCRIPTION)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="run directory of the learner, on its volume")
    run_id, epoch, mark = restore(parser.parse_args(sys.argv[1:]).run)
    sys.stdout.write(
        f"run {run_id} has epoch {epoch} now, and continues above version {mark}\n"
        "start its learner with --resume; the learners of all other copies are refused from then on\n"
    )
    return EXIT_OK
