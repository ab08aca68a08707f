"""`actorq policies`: the policy versions of a run, with their properties."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from actorq.client import QuantizerClient
from actorq.config.parser import OneLineParser
from actorq.config.sections import CERTIFICATES_HELP
from actorq.domain.policy import BEST, NEWEST, SIGNED, PolicyDescriptor, RetainedPolicy, Variant, chosen_version
from actorq.errors import InvalidInputError, NotFoundError, UserError
from actorq.inference.runpolicies import RunPolicies
from actorq.process import EXIT_OK
from actorq.rundirectory import RunDirectory
from actorq.statefiles.policies import read_descriptor, version_folder
from actorq.text import return_text, size_text
from actorq.transport.options import Certificates
from actorq_apps.cli.display import fidelity
from actorq_apps.cli.display.display import wide_output
from actorq_apps.cli.status import asking

_DESCRIPTION = """List the policy versions of a run, one line for each version and stored scheme. The best and the
newest version come first, then evaluated versions, then the others. Every version can be exported and evaluated in
every scheme."""

Describe = Callable[[int, Variant], PolicyDescriptor]


@dataclass(frozen=True)
class Row:
    """A policy of one version in one scheme, with its emitted encodings. marks: "best", "newest", both or none."""

    version: RetainedPolicy
    policy: PolicyDescriptor
    weight_encodings: tuple[str, ...]
    marks: tuple[str, ...]


def run(arguments: Sequence[str]) -> int:
    """Print the table, or the same values as JSON."""
    parser = OneLineParser(prog="actorq policies", usage="actorq policies RUN_DIR [flags]", description=_DESCRIPTION)
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR", help="folder of the run, which may be active")
    parser.add_argument("--quantizer", metavar="HOST:PORT", help="ask this quantizer instead of a folder")
    parser.add_argument("--certificates", type=Path, metavar="DIR", help=CERTIFICATES_HELP)
    parser.add_argument("--json", action="store_true", help="print one line of JSON: a list of policies")
    given = parser.parse_args(arguments)
    if (given.run is None) == (given.quantizer is None):
        parser.error("expected RUN_DIR or --quantizer HOST:PORT")
    with _source(given.run, given.quantizer, Certificates.of(given.certificates, "operator")) as (versions, describe):
        rows = list(_rows(versions, describe))
    if given.json:
        print(json.dumps([_as_json(row) for row in rows]))
    elif rows:
        _print(rows)
    return EXIT_OK


@contextmanager
def _source(
    run: Path | None, quantizer: str, certificates: Certificates | None
) -> Iterator[tuple[list[RetainedPolicy], Describe]]:
    """The versions, newest first, and a function that returns the descriptor of a policy."""
    if run is not None:
        found = RunPolicies(RunDirectory(run))
        store = found.run.policies
        yield found.versions, lambda version, variant: read_descriptor(version_folder(store, version), variant)
        return
    with asking("--quantizer", certificates), QuantizerClient(quantizer, certificates) as client:
        versions = client.list()
        if not versions:
            raise UserError(f"quantizer at {quantizer} has no policies: its run has not published any yet")
        yield versions, lambda version, variant: client.fidelity(variant.scheme, version)


def _rows(versions: list[RetainedPolicy], describe: Describe) -> Iterator[Row]:
    chosen = {choice: chosen_version(choice, versions) for choice in (BEST, NEWEST)}

    def order(version: RetainedPolicy) -> tuple[bool, ...]:
        return version is not chosen[BEST], version is not chosen[NEWEST], version.mean_return is None

    for version in sorted(versions, key=order):
        marks = tuple(choice for choice, found in chosen.items() if found is version)
        for scheme in version.schemes:
            variants = [variant for variant in version.variants if variant.scheme == scheme]
            # A newer version may have replaced it in the meantime.
            with suppress(InvalidInputError, NotFoundError):
                encodings = tuple(variant.weight_encoding for variant in variants)
                yield Row(version, describe(version.version, variants[0]), encodings, marks)


def _as_json(row: Row) -> dict[str, Any]:
    policy, report = row.policy, row.policy.fidelity
    return {
        "version": policy.version,
        "updates": policy.learner_step,
        "scheme": policy.scheme,
        "effective_scheme": policy.effective_scheme,
        "weight_encodings": row.weight_encodings,
        "mean_return": row.version.mean_return,
        "argmax_agreement": report.argmax_agreement,
        "relative_mean_error": report.relative_mean_error,
        "relative_max_error": report.relative_max_error,
        "mean_kl": report.mean_kl,
        "max_kl": report.max_kl,
        "state_drift": report.state_drift,
        "size_bytes": policy.size_bytes,
        "marks": row.marks,
    }


def _print(rows: Sequence[Row]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    measured, _ = fidelity.error(rows[0].policy.fidelity)
    drifts = ["state drift"] * any(row.policy.fidelity.sequences for row in rows)
    for name in ("version", "updates", "scheme", "return", measured, *drifts, "size", ""):
        table.add_column(name, justify="left" if name in ("scheme", "") else "right", no_wrap=True)
    for row in rows:
        policy = row.policy
        encodings = "" if row.weight_encodings == (SIGNED,) else f" ({', '.join(row.weight_encodings)})"
        table.add_row(
            str(policy.version),
            f"{policy.learner_step:,}",
            fidelity.scheme(policy) + encodings,
            return_text(row.version.mean_return),
            fidelity.error(policy.fidelity)[1],
            *(fidelity.drift(policy.fidelity) for _ in drifts),
            size_text(policy.size_bytes),
            ", ".join(row.marks),
            style="green" if row.marks else "",
        )
    wide_output().print(table)
