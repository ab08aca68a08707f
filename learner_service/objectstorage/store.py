"""Named objects in a bucket or folder: put, get, list and delete, each with a time limit."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from actorq.errors import InvalidInputError, NotFoundError, UnavailableError, UserError
from actorq.extras import require

_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_MOST_CHARACTERS = 200


class ObjectStore:
    """The objects below one URL. Methods block, and raise UnavailableError with one line when the storage fails.

    url: s3://BUCKET/PREFIX, or file:///FOLDER. endpoint: of an S3-compatible service; empty for AWS. Credentials come
    from the environment (AWS_ACCESS_KEY_ID and so on), or from the machine's role.
    """

    def __init__(self, url: str, endpoint: str = "", setting: str = "checkpoint.object_storage") -> None:
        """setting: that gives the URL. Raises UserError when the package `obstore` is missing, or for a wrong URL."""
        require(f"--{setting.replace('_', '-')}", ["s3"])
        import obstore
        from obstore import exceptions
        from obstore.store import LocalStore, S3Store

        self.url = url
        self._obstore, self._errors = obstore, exceptions
        self._store: S3Store | LocalStore
        try:
            if url.startswith("file:"):
                self._store = LocalStore(url.removeprefix("file://"), mkdir=True)
            else:
                self._store = S3Store.from_url(
                    url,
                    config={"endpoint": endpoint} if endpoint else {},
                    client_options={
                        "allow_http": endpoint.startswith("http:"),
                        "connect_timeout": timedelta(seconds=5),
                        "timeout": timedelta(seconds=60),
                    },
                    retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=15)},
                )
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise UserError(f"{setting} {url}: {_reason(str(error))}") from None

    def put(self, name: str, data: bytes) -> None:
        """Write an object, or replace it."""
        with self._one_line():
            self._obstore.put(self._store, name, data, use_multipart=False)

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists. Returns False when a writer of other data was first."""
        with self._one_line(), contextlib.suppress(self._errors.AlreadyExistsError):
            self._obstore.put(self._store, name, data, use_multipart=False, mode="create")
        # Some services ignore the condition, and the last writer wins. An existing object may be ours, from an attempt
        # whose answer was lost. Each writer therefore reads the object again. A longer object belongs to another
        # writer.
        with contextlib.suppress(InvalidInputError):
            return self.get(name, len(data)) == data
        return False

    def get(self, name: str, most: int) -> bytes:
        """The content of an object. Raises NotFoundError, or InvalidInputError if it has more than `most` bytes."""
        with self._one_line():
            found = self._obstore.get(self._store, name)
            if found.meta["size"] > most:
                raise InvalidInputError(f"{name}: expected at most {most} bytes, got {found.meta['size']}")
            return bytes(found.bytes())

    def names(self, folder: str) -> list[str]:
        """The names of all objects in a folder, sorted, without the folder."""
        with self._one_line():
            paths = [entry["path"] for page in self._obstore.list(self._store, folder) for entry in page]
        return sorted(path.removeprefix(f"{folder}/") for path in paths)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects. A missing object is not an error."""
        if paths := list(names):
            with self._one_line(), contextlib.suppress(FileNotFoundError):
                self._obstore.delete(self._store, paths)

    @contextmanager
    def _one_line(self) -> Iterator[None]:
        try:
            yield
        except (self._errors.BaseError, OSError) as error:
            text = str(error)
            if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
                raise NotFoundError(f"{self.url}: {_reason(text)}") from None
            raise UnavailableError(f"{self.url}: {_reason(text)}") from None


def _reason(text: str) -> str:
    """The cause in an error's text: the service's code, otherwise the end of the first paragraph."""
    if code := _CODE.search(text):
        return f"the service answers {code[1]}"
    first = " ".join(text.partition("\n\n")[0].split())
    return first if len(first) <= _MOST_CHARACTERS else f"...{first[-_MOST_CHARACTERS:]}"
