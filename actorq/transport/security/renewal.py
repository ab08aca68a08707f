"""Certificates that are renewed while a process lives, as cert-manager does to a mounted secret."""

import logging
import threading

from actorq.errors import UserError
from actorq.transport.options import Certificates

_log = logging.getLogger(__name__)


class Renewal:
    """Follows the folder that certificates were read from. Thread-safe.

    It looks when it is asked, which costs three small files: for each new connection, not for each message.
    """

    def __init__(self, certificates: Certificates) -> None:
        self._newest = certificates
        self._lock = threading.Lock()
        self._told = ""

    def take(self) -> Certificates | None:
        """New certificates if there are some since this was last asked; those that cannot be used are not, with a line.

        Whoever asks first gets them, so each user has a Renewal of its own.
        """
        with self._lock:
            directory = self._newest.directory
            if directory is None or not self._newest.changed():
                return None
            try:
                self._newest = Certificates.load(directory, self._newest.readable_key)
            except UserError as error:
                if self._told != str(error):
                    _log.error("%s; going on with those from before", error)
                self._told = str(error)
                return None
            self._told = ""
            _log.info("certificates: new ones in %s are used from the next connection on", directory)
            return self._newest
