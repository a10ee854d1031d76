"""What happens to the pods of two nodes, and to the second of them: what the programs share that have such cases (`nodes`, `clouds`)."""

import os
import signal

from cluster import CLUSTER, SECOND, apply, command, kubectl, nodes, remove_groups, until
from observed import CLOUD, CENTRAL, LOCAL, driver_pods, loops, objects, staged_devices
from writers import LIFE, Writer, age_journal, driver_ready, expect

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class Replaced(Writer):
    """A StatefulSet of one writer: where its pod ends, there is another, wherever it may run."""

    def __init__(self, name, **options):
        super().__init__(f"{name}-0", **options)
        self.set = name

    def documents(self):
        *claims, pod = super().documents()
        labels = {"app": self.set}
        return [*claims, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": self.set, "namespace": self.namespace},
                          "spec": {"replicas": 1, "serviceName": self.set, "selector": {"matchLabels": labels},
                                   "template": {"metadata": {"labels": labels}, "spec": pod["spec"]}}}]

    def wait_on(self, node, seconds=120):
        """Until its pod runs there and writes."""
        def there():
            pods = objects("pods", f"--namespace={self.namespace}", f"--selector=app={self.set}")
            return any(pod["spec"].get("nodeName") == node.name and "deletionTimestamp" not in pod["metadata"] for pod in pods)
        until(f"pod {self.name} on {node.name}", there, seconds)
        return self.wait()

    def delete(self):
        kubectl("delete", "statefulset", self.set, f"--namespace={self.namespace}", "--cascade=foreground")
        kubectl("delete", "pvc", f"--namespace={self.namespace}", "--wait=false", *self.claims)


def persistent(writer, number=0):
    """The PersistentVolume of a writer's claim."""
    [found] = [one for one in objects("pv") if one["spec"].get("claimRef", {}).get("name") == writer.claims[number]]
    return found


def cordon(node):
    kubectl("cordon", node.name)


def uncordon(*those):
    for node in those:
        kubectl("uncordon", node.name)


def move(writer, node):
    """Its pod ends, and another with the same volumes is made for that node."""
    writer.end()
    writer.on = node
    apply(writer.pod())
    return writer.wait()


def power_off(node):
    """As a loss of power does: the second node's processes end, with its mounts and network, and its loop devices go. What is on its disk
    stays."""
    devices = staged_devices(node) | set(loops(node)[1])
    pid = node.pid()
    os.kill(pid, signal.SIGKILL)
    until(f"end of {node.name}", lambda: not os.path.exists(f"/proc/{pid}") and not os.path.exists(f"/sys/class/net/{node.name}"))
    for device in devices:
        command("losetup", "--detach", device, check=False)
    until("end of its loop devices", lambda: not devices & set(command("losetup", "--list", "--noheadings", "--output=NAME").stdout.split()))
    until("end of its cgroups", lambda: all(remove_groups(group) for group in node.groups()))
    expect(not node.runs(), f"{node.name} still runs")


def power_on(node):
    age_journal(f"{CLUSTER}/{node.name}/var/lib")
    node.boot()
    for release in (LOCAL, CENTRAL, CLOUD):
        if driver_pods(node, release):
            driver_ready(node, release)


def not_ready(node):
    kubectl("wait", "--for=condition=Ready=Unknown", f"node/{node.name}", "--timeout=150s")


def clean_up():
    """So that what a failed case has left does not fail the next."""
    if not SECOND.runs():
        power_on(SECOND)
    uncordon(*nodes())
    kubectl("taint", "node", SECOND.name, f"{OUT_OF_SERVICE}-", check=False)
    kubectl("delete", "statefulset,pod,pvc", "--all", f"--namespace={LIFE}", "--timeout=120s", check=False)
    kubectl("delete", "volumeattachment", "by-hand", "--ignore-not-found", check=False)
