"""A node with a kernel of its own: the virtual machine of tests/vm, which has device-mapper, NFS and iSCSI. It is in the first node's network."""

import json
import os
import shlex
import shutil
import signal

from cluster import ADMIN, BIN, CHART, CLUSTER, LOGS, NAMESPACE, TESTS, Node, command, given, kubectl, start, until
from observed import Release, processes

# By serial number, in MiB: the node's own, physical volumes of LVM, whole disks, of which every byte is read before they are used, the NFS
# server's, the target server's.
DISKS = {"node": 8192, "pv0": 3072, "pv1": 3072, "whole0": 160, "whole1": 160, "nfs": 2048, "san": 4096}

DEVICES = Release("devices", "longshore.csi.dev", "", "/var/lib/longshore/journal", False)
NFS = Release("nfs", "nfs.longshore.csi.dev", "", "/var/lib/longshore-nfs/journal", True)
SAN = Release("san", "san.longshore.csi.dev", "", "/var/lib/longshore-san/journal", True)
EXAMPLES = "/run/root/manifests/values"
RELEASES = {DEVICES: given("values-machine.yaml"), NFS: [f"--values={EXAMPLES}/nfs.yaml", *given("values-machine-nfs.yaml")],
            SAN: [f"--values={EXAMPLES}/iscsi.yaml", *given("values-machine-iscsi.yaml")]}


class Machine(Node):
    """The virtual machine."""

    def __init__(self):
        super().__init__("node-vm", "10.90")
        self.directory = f"{CLUSTER}/{self.name}"

    def command(self, *words, **options):
        return command("ssh", "-i", "/run/keys/client", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
                       "-o", "ConnectTimeout=5", f"root@{self.address}", shlex.join(words), **options)

    def make(self):
        """Its disks, and a network. The first node's containerd does not run: its images are copied."""
        os.makedirs(f"{self.directory}/work")
        os.makedirs(f"{LOGS}/{self.name}")
        # Where tests/vm has made it.
        os.symlink(os.environ["LONGSHORE_MACHINE"], f"{self.directory}/made")
        for name, size in DISKS.items():
            with open(f"{self.directory}/{name}.img", "wb") as file:
                file.truncate(size << 20)
        node, at = f"{self.directory}/node.img", f"{self.directory}/at"
        command("mke2fs", "-q", "-t", "ext4", node)
        os.makedirs(at)
        command("mount", "-o", "loop", node, at)
        try:
            for place in ("bin", "cluster", "logs"):
                os.makedirs(f"{at}/{place}")
            for name in ("kubernetes", "kubelet", "containerd", "containerd-shim-runc-v2", "ctr", "runc", "sshd", "cni"):
                command("cp", "--archive", f"{BIN}/{name}", f"{at}/bin/")
            command("cp", "--archive", f"{CLUSTER}/containerd", f"{at}/cluster/")
            shutil.copytree(TESTS, f"{at}/tests", ignore=lambda place, names: set(names) - {"node", "path"} if place == TESTS else ())
        finally:
            command("umount", at)
        for source, name in ((f"{TESTS}/node/machine", "run.sh"), (ADMIN, "admin.kubeconfig"), ("/run/keys/host", "host"), ("/run/keys/client.pub", "client.pub")):
            shutil.copy(source, f"{self.directory}/work/{name}")
        command("ip", "tuntap", "add", "dev", self.name, "mode", "tap")
        self.connect()

    def boot(self):
        """Starts it, with what is on its disks; it is ready then."""
        before = self.boot_id()
        os.environ.update(VM_TAP=self.name, VM_CPUS="2", VM_MEMORY="4096", VM_LIMIT="86400",
                          VM_DISKS=" ".join(f"{name}={self.directory}/{name}.img" for name in DISKS))
        child = start(self.name, "/run/root/tests/vm/boot", os.readlink(f"{self.directory}/made"), f"{self.directory}/work", f"{LOGS}/{self.name}")
        # The API server treats it as ready for a while when it is not there any more.
        until(f"boot of {self.name}", lambda: self.boot_id() not in (None, before) or child.poll() is not None, 600)
        if child.poll() is not None:
            raise RuntimeError(f"{self.name} has ended; see {self.name}/console.log")
        kubectl("wait", "--for=condition=Ready", f"node/{self.name}", "--timeout=300s", timeout=320)

    def use(self, release):
        """Installs a release, as the chart's examples have it, and nothing else: emulated processors have no time for more at once."""
        installed = json.loads(command("helm", f"--kubeconfig={ADMIN}", "list", f"--namespace={NAMESPACE}", "--output=json").stdout)
        for other in {one["name"] for one in installed} - {release.name}:
            command("helm", f"--kubeconfig={ADMIN}", "uninstall", other, f"--namespace={NAMESPACE}", "--wait", "--timeout=180s")
        if release.name not in {one["name"] for one in installed}:
            command("helm", f"--kubeconfig={ADMIN}", "install", release.name, CHART, f"--namespace={NAMESPACE}", *RELEASES[release])
        self.ready(release)

    def ready(self, release):
        for workload in (f"daemonset/{release.name}-node", f"deployment/{release.name}-controller"):
            kubectl("rollout", "status", workload, f"--namespace={NAMESPACE}", "--timeout=400s", timeout=420)

    def boot_id(self):
        done = kubectl("get", "node", self.name, "-o", "jsonpath={.status.nodeInfo.bootID}", check=False)
        return done.stdout if done.returncode == 0 else None

    def emulators(self):
        return processes("qemu-system-x86_64", f"{self.directory}/node.img")

    def runs(self):
        return bool(self.emulators())

    def power_off(self):
        """As a loss of power does: what its kernel has not written yet is lost, and what is on its disks stays."""
        for pid in self.emulators():
            os.kill(pid, signal.SIGKILL)
        until(f"end of {self.name}", lambda: not self.runs())

    def keep_logs(self):
        """Its logs are on its disk."""
        for name in ("kubelet", "containerd"):
            done = self.command("tail", "-c", "4000000", f"/run/logs/{name}.log", check=False)
            with open(f"{LOGS}/{self.name}/{name}.log", "w", encoding="utf-8") as file:
                file.write(done.stdout)
        with open(f"{LOGS}/{self.name}/dmesg", "w", encoding="utf-8") as file:
            file.write(self.command("dmesg", check=False).stdout)


MACHINE = Machine()
