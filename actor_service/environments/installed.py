"""Finds the installed package that registers an environment, without importing any."""

from importlib.metadata import Distribution, distributions

_LIBRARY = "gymnasium"
_MOST_FILE_BYTES = 1 << 20


def module_that_registers(environment_id: str) -> str | None:
    """The top-level module of an installed package whose source has this id as a string; None if there is none."""
    quoted = [f"{quote}{environment_id}{quote}".encode() for quote in "\"'"]
    for distribution in distributions():
        if any(requirement.startswith(_LIBRARY) for requirement in distribution.requires or ()):
            module = _module_with(distribution, quoted)
            if module is not None:
                return module
    return None


def _module_with(distribution: Distribution, texts: list[bytes]) -> str | None:
    for file in distribution.files or ():
        if file.suffix != ".py" or file.parts[0] == "..":
            continue
        try:
            with open(str(file.locate()), "rb") as stream:
                source = stream.read(_MOST_FILE_BYTES)
        except OSError:
            continue
        if any(text in source for text in texts):
            return file.parts[0].removesuffix(".py")
    return None
