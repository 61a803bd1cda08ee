"""A Ray cluster on Kubernetes: its head pod is found by KubeRay's labels, its ports forwarded by kubectl."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rldbg.core import PrerequisiteError, UnreachableError, UsageError
from rldbg.launch.tunnel.forwarding import PortForward
from rldbg.launch.tunnel.remote import Host


@dataclass(frozen=True, slots=True)
class RayCluster:
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "RayCluster":
        namespace, slash, name = text.partition("/")
        if not slash or not namespace or not name or "/" in name:
            raise UsageError(
                f"invalid --k8s {text!r} (expected NAMESPACE/RAYCLUSTER)", "for example --k8s training/ray-math"
            )
        return cls(namespace, name)

    def head_pod(self) -> str:
        """The running head pod; an error says which state it is in instead."""
        label = f"ray.io/cluster={self.name},ray.io/node-type=head"
        pods = json.loads(self._kubectl("get", "pods", "-l", label, "-o", "json")).get("items", [])
        if not pods:
            raise UnreachableError(
                f"no head pod found for {self.namespace}/{self.name}",
                f"kubectl -n {self.namespace} get rayclusters",
            )
        for pod in pods:
            if pod.get("status", {}).get("phase") == "Running":
                return str(pod["metadata"]["name"])
        phase = pods[0].get("status", {}).get("phase", "unknown")
        name = pods[0]["metadata"]["name"]
        raise UnreachableError(f"the head pod {name} is {phase}", f"kubectl -n {self.namespace} describe pod {name}")

    def exists(self) -> bool:
        try:
            self.head_pod()
        except UnreachableError:
            return False
        return True

    def command(self, pod: str, forwards: Sequence[PortForward]) -> list[str]:
        ports = [f"{forward.local}:{forward.port}" for forward in forwards]
        return ["kubectl", "-n", self.namespace, "port-forward", "--address", "127.0.0.1", f"pod/{pod}", *ports]

    def _kubectl(self, *words: str) -> str:
        try:
            return Host().run(["kubectl", "-n", self.namespace, *words], timeout_s=60.0)
        except PrerequisiteError as error:
            raise PrerequisiteError(error.message, "install kubectl and log in to the cluster") from None
        except UnreachableError as error:
            raise UnreachableError(
                f"kubectl failed: {error.message}", f"kubectl -n {self.namespace} get pods"
            ) from None
