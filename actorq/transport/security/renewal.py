"""Follows certificates that are renewed while a process runs, for example when cert-manager renews a mounted secret."""

import logging
import threading

from actorq.errors import UserError
from actorq.transport.options import Certificates

_log = logging.getLogger(__name__)


class Renewal:
    """Watches the folder of certificates. Thread-safe.

    A check reads three small files. It happens for each new connection, not for each message.
    """

    def __init__(self, certificates: Certificates) -> None:
        self._newest = certificates
        self._lock = threading.Lock()
        self._told = ""

    def poll(self) -> Certificates | None:
        """New certificates since the last call, or None. Unusable certificates are logged and not returned.

        Only one caller gets new certificates, so each user needs its own Renewal.
        """
        with self._lock:
            directory = self._newest.directory
            if directory is None or not self._newest.changed():
                return None
            try:
                self._newest = Certificates.load(directory, self._newest.readable_key)
            except UserError as error:
                if self._told != str(error):
                    _log.error("%s; the previous certificates stay in use", error)
                self._told = str(error)
                return None
            self._told = ""
            _log.info("certificates: the next connection uses the new certificates in %s", directory)
            return self._newest
