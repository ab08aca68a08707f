"""A small volume on the node, which a test can fill."""

from actorq import __version__
from actorq_apps.cluster.connection import Cluster
from actorq_apps.cluster.objects import part


class SmallVolume:
    """A volume of tmpfs on the node, for runs with the storage class of its name.

    cluster: a namespace that takes privileged pods. The runs may be in another one.
    """

    def __init__(self, cluster: Cluster, name: str, megabytes: int) -> None:
        self.storage_class = name
        self._cluster = cluster
        self._folder = f"/var/lib/{name}"
        mount = f"mount -t tmpfs -o size={megabytes}m,mode=777 none {self._folder}"
        self._on_node("mount", f"mkdir -p {self._folder} && {mount}")
        spec = {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": name,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": self._folder},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self._cluster.apply(volume)

    def fill(self) -> None:
        """Fill the volume."""
        self._on_node("fill", f"cat /dev/zero > {self._folder}/filler || true")

    def close(self) -> None:
        """Remove the volume."""
        self._on_node("umount", f"umount -l {self._folder} && rmdir {self._folder}")
        self._cluster.delete("v1", "PersistentVolume", self.storage_class)

    def _on_node(self, name: str, script: str) -> None:
        container = {
            "name": "node",
            "image": f"actorq-learner:{__version__}",
            "command": ["nsenter", "--target", "1", "--mount", "--", "sh", "-c", script],
            "securityContext": {"privileged": True, "runAsUser": 0},
        }
        spec = {
            "hostPID": True,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        pod = f"{self.storage_class}-{name}"
        # A new namespace gets its service account a moment later, and no pod can start without it.
        while self._cluster.get("v1", "ServiceAccount", "default") is None:
            self._cluster.await_pod_change("", 1)
        self._cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": spec})
        while (phase := self._phase(pod)) not in ("Succeeded", "Failed"):
            self._cluster.await_pod_change("", 1)
        assert phase == "Succeeded", script

    def _phase(self, pod: str) -> str:
        return str(part(self._cluster.get("v1", "Pod", pod), "status").get("phase", ""))
