"""What the programs in the cluster's namespaces share (`inside`, `life`): its places, its nodes, its processes, kubectl."""

import glob
import json
import os
import shutil
import subprocess
import time

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# All paths that the settings in node/ name are made by `inside`: /run is a directory of this mount namespace's own.
CLUSTER, BIN, LOGS, TESTS, PIDS = "/run/cluster", "/run/bin", "/run/logs", "/run/tests", "/run/pids"
ADMIN = f"{CLUSTER}/admin.kubeconfig"
# What the API server notes of each request, where `churn` reads it.
AUDIT = f"{CLUSTER}/audit.log"
CHART = "/run/root/manifests/helm/longshore"
NAMESPACE = "longshore-system"
# Of the release with local volumes, in the order in which Helm takes them. The second are the rates of the sidecars.
VALUES, RAISED = "values.yaml", "values-raised.yaml"
# Of local volumes, of the shared release, and of directories.
POOLS = ("/var/lib/longshore/pool", "/mnt/cluster", "/var/lib/longshore/base")
# Of disks of the stand-in for a cloud; those of a node, with what its config drive says, are in the directory of its name.
MACHINES = f"{POOLS[1]}/machines"

# Of pid 1 of a sandbox: it collects whatever ends, and its own end is that of all others.
INIT = '"$@" <&0 & wait $!'


def command(*words, stdin=None, check=True, timeout=300):
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:6])}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def start(name, *words):
    """Starts a daemon, whose process id is then in /run/pids."""
    with open(f"{LOGS}/{name}.log", "a", encoding="utf-8") as log:
        # It outlives the caller. pylint: disable-next=consider-using-with
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    note_pid(name, child.pid)
    return child


def note_pid(name, pid):
    os.makedirs(PIDS, exist_ok=True)
    with open(f"{PIDS}/{name}", "w", encoding="utf-8") as file:
        file.write(f"{pid}\n")


def pid_of(name):
    with open(f"{PIDS}/{name}", encoding="utf-8") as file:
        return int(file.read())


def hierarchies():
    """The cgroup hierarchies of this machine: {name: (where it is mounted, the options to mount it again)}."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            before, after = line.split(" - ")
            kind, _, options = after.split()
            if kind == "cgroup":
                place = before.split()[4]
                named = [option for option in options.split(",") if option not in ("rw", "ro", "xattr", "clone_children") and "release_agent" not in option]
                if any(option.startswith("name=") for option in named):
                    named.insert(0, "none")
                found[os.path.basename(place)] = (place, ",".join(named))
    return found


def options_of_hierarchies():
    """By which they are mounted again in a cgroup namespace, as `inside` takes them."""
    return json.dumps({name: options for name, (_, options) in hierarchies().items()})


def isolated(groups, words, **options):
    """Starts a program in namespaces and in cgroups of its own, which are these."""
    for group in groups:
        os.makedirs(group, exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            # A new group has none, and takes no process.
            if os.path.exists(f"{group}/{name}"):
                with open(f"{os.path.dirname(group)}/{name}", encoding="utf-8") as source, open(f"{group}/{name}", "w", encoding="utf-8") as file:
                    file.write(source.read())

    def join():
        for group in groups:
            with open(f"{group}/cgroup.procs", "w", encoding="utf-8") as file:
                file.write("0")

    # The caller waits for it. pylint: disable-next=consider-using-with,subprocess-popen-preexec-fn
    return subprocess.Popen(["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup",
                             "--mount-proc", "bash", "-c", INIT, "init", *words], preexec_fn=join, **options)


def remove_groups(top):
    """Removes a cgroup with those below it; returns whether that was possible."""
    for place, _, _ in os.walk(top, topdown=False):
        try:
            os.rmdir(place)
        except OSError:
            return False
    return True


class Node:
    """A node of the cluster. The second has namespaces inside those of the first, in which the control plane and the tests are, too."""

    def __init__(self, name, network):
        # Its pods' addresses begin with the second, and the bridge of its pods has the first of them.
        self.name, self.network, self.address = name, network, f"{network}.0.1"

    def pid(self):
        """Of its first process, as the first node sees it."""
        return 1 if self is FIRST else pid_of(self.name)

    def at(self, path):
        """Where the first node sees a path of this one."""
        return path if self is FIRST else f"/proc/{self.pid()}/root{path}"

    def command(self, *words, **options):
        """Runs a program on it."""
        return command(*([] if self is FIRST else ["nsenter", f"--target={self.pid()}", "--all"]), *words, **options)

    def boot(self):
        """Starts the second node, with what is on its disk; it is ready then."""
        directory = f"{CLUSTER}/{self.name}"
        os.makedirs(directory, exist_ok=True)
        os.makedirs(f"{LOGS}/{self.name}", exist_ok=True)
        if not os.path.exists(f"{directory}/images.tar"):
            os.link(f"{CLUSTER}/images.tar", f"{directory}/images.tar")
        shutil.copy(ADMIN, directory)
        with open(f"{LOGS}/{self.name}.log", "a", encoding="utf-8") as log:
            child = isolated(self.groups(), ["/run/root/tests/kubernetes/inside", "--second"],
                             env={**os.environ, "LONGSHORE_CLUSTER": directory, "LONGSHORE_BIN": BIN, "LONGSHORE_LOGS": f"{LOGS}/{self.name}",
                                  "LONGSHORE_CGROUPS": options_of_hierarchies()},
                             stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        note_pid(self.name, until("process of the second node", lambda: command("pgrep", f"--parent={child.pid}", check=False).stdout.strip()))
        # The other end's name is that of the node that it leads to.
        command("ip", "link", "add", self.name, "type", "veth", "peer", "name", FIRST.name, "netns", str(self.pid()))
        self.connect()
        until(f"kubelet of {self.name}", lambda: child.poll() is not None or os.path.exists(self.at("/run/booted")))
        if child.poll() is not None:
            raise RuntimeError(f"{self.name} has ended; see {self.name}.log")
        self.wait_ready()

    def connect(self):
        """The second node's link to the first is there."""
        command("ip", "link", "set", self.name, "up")
        command("ip", "route", "add", f"{self.network}.0.0/16", "via", self.address, "dev", self.name, "onlink", "src", FIRST.address)

    def disconnect(self):
        command("ip", "link", "set", self.name, "down")

    def runs(self):
        return self is FIRST or os.path.exists(f"{PIDS}/{self.name}") and os.path.exists(f"/proc/{self.pid()}")

    def groups(self):
        """The second node's cgroups."""
        return [f"{place}/{self.name}" for place in glob.glob("/sys/fs/cgroup/*")]

    def wait_ready(self):
        until(f"node {self.name}", lambda: kubectl("get", "node", self.name, check=False).returncode == 0)
        kubectl("wait", "--for=condition=Ready", f"node/{self.name}", "--timeout=90s")


FIRST, SECOND = Node("node-a", "10.88"), Node("node-b", "10.89")


def nodes():
    """Those that run."""
    return [node for node in (FIRST, SECOND) if node.runs()]


def start_containerd():
    start("containerd", "containerd", f"--config={TESTS}/node/containerd.toml")
    until("containerd", lambda: command("ctr", "version", check=False).returncode == 0)


def mount_pool(number):
    """Mounts the file system of a pool, which is made at the first time."""
    image = f"{CLUSTER}/pool-{number}.img"
    os.makedirs(POOLS[number], exist_ok=True)
    if not os.path.exists(image):
        with open(image, "wb") as file:
            file.truncate(60 << 30)
        command("mkfs.xfs", "-q", "-m", "reflink=1", image)
    command("mount", "-o", "loop", image, POOLS[number])
    # By which the caller of `inside` finds loop devices that were left.
    with open(f"{CLUSTER}/pools", "a", encoding="utf-8") as file:
        device = os.stat(POOLS[number]).st_dev
        file.write(f"{os.major(device)}:{os.minor(device)}\n")


def until(what, condition, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise RuntimeError(f"no {what} after {seconds} s; see the logs")


def kubectl(*words, **options):
    return command("kubectl", f"--kubeconfig={ADMIN}", *words, **options)


def given(*names):
    """Of these files of values, the words for Helm."""
    return [f"--values={TESTS}/{name}" for name in names]


def apply(*documents):
    kubectl("apply", "--server-side", "--validate=strict", "-f", "-", stdin=yaml.safe_dump_all(documents))


def documents_of(path):
    with open(path, encoding="utf-8") as file:
        return [document for document in yaml.safe_load_all(file) if document]
