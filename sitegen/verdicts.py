"""Explains missed targets. The explanations are in MEANINGS of each benchmark."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.harness import Meaning, Target
from sitegen import results
from sitegen.markdown import number, table
from sitegen.results import NEWER, command, load, page, stored, target_of

_ROOT = Path(__file__).parents[1]
# Parts of a name that may differ between two measurements of the same target: remarks and the number of seeds.
_VARIES = re.compile(r" \([^)]*\)|\d+ seeds\b|\bof \d+$")
_ALGORITHM = "dqn|d4pg|td3|sac|xqc|ppo|impala"
_TASK = re.compile(rf"(?:({_ALGORITHM})/)?(?:dm_control/|ALE/)?([\w-]+)(?:/(\d+))?")
_WORDS = {"torch": "PyTorch", "fp32": "FP32", "rigl": "RigL", "static": "static masks"}


@dataclass(frozen=True)
class Verdict:
    """A target of a stored result. met is None if the processor lacks a feature that the target needs."""

    result: str
    target: Target
    met: bool | None

    @property
    def meaning(self) -> Meaning:
        """The explanation of the target. Raises LookupError if its benchmark has none."""
        return self._meaning[0]

    @property
    def link(self) -> str:
        """The question, as a link to the page with the result."""
        return f"[{self.meaning.question}]({page(self.result)})"

    @property
    def case(self) -> str:
        """The case of the question for this target, with the processor or the GPU if relevant."""
        meaning, found = self._meaning
        parts = [meaning.case.format(**{name: plain(text) for name, text in found.groupdict().items()})]
        parts += ["without VNNI"] * self.result.endswith("_without_vnni")
        parts += ["learner on a GPU"] * ("--device cuda" in command(self.result))
        return ", ".join(part for part in parts if part)

    @property
    def measured(self) -> str:
        """The measured figure with its unit, and its case."""
        return self._shown(self.target.measured) + (f" ({self.case})" if self.case else "")

    @property
    def bound(self) -> str:
        """The bound with its unit."""
        return f"{'at most' if self.target.at_most else 'at least'} {self._shown(self.target.bound)}"

    @property
    def newest(self) -> "Verdict":
        """The newest measurement of the same target."""
        wanted = self._key
        for newer in reversed(NEWER.get(self.result, ())):
            for each in of(newer):
                if each._key == wanted:
                    return each
        return self

    @property
    def _meaning(self) -> tuple[Meaning, re.Match[str]]:
        for meaning in _meanings(self.result):
            if found := re.fullmatch(meaning.pattern, self.target.name):
                return meaning, found
        module = command(self.result).split()[2]
        raise LookupError(f"{module}: expected a pattern in MEANINGS for {self.target.name!r}, got none")

    @property
    def _key(self) -> tuple[str, str]:
        return _VARIES.sub("", self.target.name), self.target.needs

    def _shown(self, figure: float) -> str:
        meaning = self.meaning
        return f"{number(figure if meaning.scale == 1 else figure * meaning.scale)}{meaning.unit}"


def failed() -> Iterator[Verdict]:
    """All missed targets of all results, without targets for other processors."""
    return (each for name in stored() for each in of(name) if each.met is False)


def missed() -> str:
    """The targets whose newest measurement misses them, by page and question."""
    by_question: dict[tuple[str, str, str], list[Verdict]] = {}
    for each in failed():
        if each.newest is each and not each.target.refused:
            by_question.setdefault((page(each.result), each.meaning.question, each.bound), []).append(each)
    rows = [
        (f"[{question}]({file})", bound, "<br>".join(each.measured for each in found), found[0].meaning.means)
        for (file, question, bound), found in sorted(by_question.items(), key=lambda item: item[0])
    ]
    return table(("question", "target", "measured", "what it means for you"), rows)


def no_verdict() -> str:
    """The targets without a verdict in their newest measurement."""
    rows = [
        # Zero means that the figure was not measured.
        (each.link, each.measured if each.target.measured else each.case, each.target.refused)
        for each in failed()
        if each.newest is each and each.target.refused
    ]
    return table(("question", "measured", "why there is no verdict"), rows)


def missed_before() -> str:
    """The targets that an older result misses, each with its newest measurement."""
    rows = []
    for each in failed():
        newest = each.newest
        if newest is not each and not each.target.refused:
            verdict = newest.target.refused or ("met" if newest.met else "missed")
            rows.append((each.link, each.bound, each.measured, newest.measured, verdict))
    return table(("question", "target", "older result", "newest result", "newest verdict"), rows)


def line(name: str) -> str:
    """One line about the origin of a result, and an explanation of each target that it misses. It omits targets that a
    newer result measures again.
    """
    found = [
        f"- **Missed**: {each.meaning.question} {each.measured}. The target is {each.bound}. {each.meaning.means}"
        for each in of(name)
        if each.met is False and each.newest is each and not each.target.refused
    ]
    return "\n".join([results.line(name), *([""] if found else []), *found])


def plain(text: str) -> str:
    """A readable name of a task such as `d4pg/dm_control/cartpole-balance/2048`, or of a baseline."""
    if text in _ALGORITHM.split("|"):
        return text.upper()
    found = _TASK.fullmatch(text)
    if not found:
        return text
    algorithm, environment, width = found.groups()
    task = f"{algorithm.upper()} on {environment}" if algorithm else _WORDS.get(environment, environment)
    return f"{task}, width {number(int(width))}" if width else task


def of(name: str) -> list[Verdict]:
    """All targets of a result."""
    return [Verdict(name, target_of(each), each["met"]) for each in load(name)["targets"]]


def _meanings(result: str) -> tuple[Meaning, ...]:
    module = command(result).split()[2]
    is_file = _ROOT.joinpath(*module.split(".")).with_suffix(".py").exists()
    found: tuple[Meaning, ...] = getattr(import_module(module if is_file else f"{module}.__main__"), "MEANINGS", ())
    return found
