"""Finds the cluster of kubectl's current context, or of the pod that this process runs in."""

import logging
import os
from pathlib import Path

from kubernetes import client, config

from actorq.errors import UserError
from actorq_apps.cluster.connection import Cluster

# Kubernetes sets this variable in every container.
_POD_HOST = "KUBERNETES_SERVICE_HOST"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def connect(namespace: str | None, run: str = "") -> Cluster:
    """The cluster of the current context (KUBECONFIG, ~/.kube/config), or of the pod that this process runs in.

    namespace: None for the context's namespace. run: a run's name; empty for the only run.
    Raises UserError when there is no cluster.
    """
    configuration = client.Configuration()
    # If a credential command fails, the library only logs the reason and continues.
    refused = _LastError()
    logging.getLogger().addHandler(refused)
    try:
        if _POD_HOST in os.environ and "KUBECONFIG" not in os.environ and not Path(_kubeconfig()).exists():
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(_kubeconfig(), client_configuration=configuration)
        namespace = namespace or _context_namespace()
    except config.ConfigException as error:
        raise _no_configuration(str(error)) from None
    except Exception as error:
        # The library barely checks a kubeconfig, so a malformed one can cause any exception.
        raise _no_configuration(f"{_kubeconfig()} is not a readable kubeconfig ({error})") from None
    finally:
        logging.getLogger().removeHandler(refused)
    if refused.text:
        raise UserError(
            f"no cluster: the command for your credentials fails ({refused.text}); see `users` in "
            "`kubectl config view --minify`"
        )
    if not str(configuration.host).startswith(("http://", "https://")):
        raise _no_configuration(f"`server` of the current context: expected https://HOST, got {configuration.host!r}")
    return Cluster(configuration, namespace, run=run)


class _LastError(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = " ".join(record.getMessage().split())


def _no_configuration(reason: str) -> UserError:
    return UserError(
        f"no cluster: {' '.join(reason.split()).rstrip('.')}; set KUBECONFIG, or choose a context with "
        "`kubectl config use-context`"
    )


def _kubeconfig() -> str:
    """The kubeconfig path, as kubectl determines it: one file, or several to merge."""
    return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def _context_namespace() -> str:
    try:
        _, current = config.list_kube_config_contexts(_kubeconfig())
    except config.ConfigException:
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip() if _POD_NAMESPACE.exists() else "default"
    return str(current["context"].get("namespace") or "default")
