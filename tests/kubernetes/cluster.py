"""What the programs in the cluster's namespaces share (`inside`, `life`): its places, its processes, kubectl."""

import os
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
NODE = "node-a"
# Of local volumes, of the shared release, and of directories.
POOLS = ("/var/lib/longshore/pool", "/mnt/cluster", "/var/lib/longshore/base")


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
    os.makedirs(PIDS, exist_ok=True)
    with open(f"{PIDS}/{name}", "w", encoding="utf-8") as file:
        file.write(f"{child.pid}\n")
    return child


def start_containerd():
    start("containerd", "containerd", f"--config={TESTS}/node/containerd.toml")
    until("containerd", lambda: command("ctr", "version", check=False).returncode == 0)


def mount_pool(number):
    """Mounts the file system of a pool."""
    command("mount", "-o", "loop", f"{CLUSTER}/pool-{number}.img", POOLS[number])
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
