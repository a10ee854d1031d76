"""Pods that write into their volumes and can be asked what they wrote; and what the programs that use them share (`life`, `churn`): kills,
what must be true at the end, and the report."""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

from cluster import FIRST, apply, kubectl, until
from observed import DRIVER, LOCAL, differences, driver_is_ready, driver_process, objects

# The namespace of pods of which none is said.
LIFE = "life"
# A shell, by a name that is the same whatever the suite calls its own (`images`).
IMAGE = "longshore.test/shell:1"
# Appends the next number to a file of each volume, and has it on disk before it continues.
WRITE_FILES = """
while :; do
    for volume in /data/*; do
        echo $(($(tail -n 1 $volume/log 2>/dev/null) + 1)) >>$volume/log && sync $volume/log || exit 1
    done
    sleep 1
done
"""
# The same on a raw volume: record n has the number n, the first one the last number.
WRITE_BLOCKS = """
record() { printf %s $1 | dd of=/dev/volume bs=512 count=1 seek=$2 conv=sync,notrunc,fsync 2>/dev/null; }
n=$(dd if=/dev/volume bs=512 count=1 2>/dev/null | tr -d '\\0')
while :; do
    n=$((n + 1))
    record $n $n && record $n 0 || exit 1
    sleep 1
done
"""


class Failed(Exception):
    """A case has not ended as it should have."""


def expect(condition, message):
    if not condition:
        raise Failed(message)


def claim(name, namespace=LIFE, size="300Mi", storage_class="longshore-xfs", **spec):
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
            "spec": {"storageClassName": storage_class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}}


class Writer:
    """A pod that writes into its volumes: `volumes` file systems, an inline one as well, or one raw volume."""

    def __init__(self, name, volumes=1, namespace=LIFE, inline=False, raw=False, storage_class="longshore-xfs", on=None, size="300Mi"):
        self.name, self.namespace, self.raw, self.storage_class, self.size = name, namespace, raw, storage_class, size
        # The node that it must run on, if any.
        self.on = on
        self.claims = [f"{name}-{number}" for number in range(volumes)]
        self.inline = inline
        # Of what stays when a case has failed.
        self.labels = {}
        # What it was seen to have written, by volume.
        self.written = {}

    def documents(self):
        claims = [claim(one, self.namespace, self.size, self.storage_class, **({"volumeMode": "Block"} if self.raw else {})) for one in self.claims]
        for one in claims:
            one["metadata"]["labels"] = self.labels
        return [*claims, self.pod()]

    def pod(self):
        container = {"name": "writer", "image": IMAGE, "command": ["sh", "-c", WRITE_BLOCKS if self.raw else WRITE_FILES]}
        volumes = [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in self.claims]
        if self.inline:
            volumes.append({"name": "inline", "csi": {"driver": DRIVER, "volumeAttributes": {"size": "300MiB"}}})
        if self.raw:
            container["volumeDevices"] = [{"name": self.claims[0], "devicePath": "/dev/volume"}]
        else:
            container["volumeMounts"] = [{"name": one["name"], "mountPath": f"/data/{one['name']}"} for one in volumes]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name, "namespace": self.namespace, "labels": self.labels},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes,
                         **({"nodeSelector": {"kubernetes.io/hostname": self.on.name}} if self.on else {})}}

    def start(self):
        apply(*self.documents())
        return self

    def wait(self, seconds=90):
        """Until it runs and has written into each of its volumes."""
        kubectl("wait", f"--namespace={self.namespace}", "--for=condition=Ready", f"pod/{self.name}", f"--timeout={seconds}s", timeout=seconds + 20)
        until(f"writes of pod {self.name}", lambda: all(self.read().values()), 60)
        return self

    def execute(self, script):
        return kubectl("exec", f"--namespace={self.namespace}", self.name, "--", "sh", "-c", script).stdout

    def read(self):
        """How far it has written, by volume. Fails where a number is missing, or one that was there before."""
        if self.raw:
            records = self.execute("n=$(dd if=/dev/volume bs=512 count=1 2>/dev/null | tr -d '\\0'); "
                                   "dd if=/dev/volume bs=512 count=$((n + 1)) 2>/dev/null | tr -s '\\0' ' '").split()
            # The first record may have been written again since it was read for the count.
            last = max(len(records) - 1, 0)
            expect([int(one) for one in records[1:]] == list(range(1, last + 1)) and int([*records, 0][0]) >= last, f"pod {self.name}: records of the raw volume: {records}")
            seen = {self.claims[0]: last}
        else:
            lines = self.execute("for v in /data/*; do touch $v/log; echo ${v#/data/} 0$(tail -n 1 $v/log) $(awk '$1 != NR' $v/log | wc -l); done").splitlines()
            fields = [line.split() for line in lines]
            expect(all(len(one) == 3 and one[2] == "0" for one in fields), f"pod {self.name}: volumes, their last numbers, lines with a wrong one: {lines}")
            seen = {one[0]: int(one[1]) for one in fields}
        for volume, number in self.written.items():
            expect(seen.get(volume, 0) >= number, f"pod {self.name}: volume {volume} has {seen.get(volume, 0)} numbers and had {number}")
        self.written = seen
        return seen

    def state(self):
        """Of its container: uid of the pod, how often it was started."""
        [pod] = objects(f"--namespace={self.namespace}", "pod", self.name)
        return pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]

    def end(self, *options):
        kubectl("delete", "pod", self.name, f"--namespace={self.namespace}", *options)

    def delete(self):
        """Ends the pod and deletes its claims, and waits for neither."""
        self.end("--wait=false")
        kubectl("delete", "pvc", f"--namespace={self.namespace}", "--wait=false", *self.claims)


def holder(name, namespace=LIFE):
    """A pod with hostPath / and no mount propagation, which has copies of all mounts of its start."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"terminationGracePeriodSeconds": 1, "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
                     "containers": [{"name": "sleep", "image": IMAGE, "command": ["sleep", "1000000"],
                                     "volumeMounts": [{"name": "host", "mountPath": "/host"}]}]}}


def continue_to_write(writers):
    """Waits until all of these have written more."""
    before = [writer.read() for writer in writers]
    for writer, seen in zip(writers, before):
        until(f"further writes of pod {writer.name}", lambda: all(number > seen[volume] for volume, number in writer.read().items()), 30)  # pylint: disable=W0640


def settle(seconds=90, seen=differences):
    """Waits until the node has what the API server's objects say, and nothing else."""
    deadline = time.monotonic() + seconds
    while found := seen():
        if time.monotonic() > deadline:
            raise Failed(f"after {seconds} s: " + "; ".join(found[:12]))
        time.sleep(0.5)


def end_process(pid, number=signal.SIGKILL):
    """Kills a process and waits until it is gone. One that nobody collects has no executable any more."""
    os.kill(pid, number)

    def gone():
        try:
            return not os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return True
    until(f"end of process {pid}", gone, 30)


def kill_driver():
    """kill -9, of the process alone: the kubelet starts the container again."""
    pid = driver_process()
    expect(pid, "no driver runs")
    end_process(pid)


def driver_ready(node=FIRST, release=LOCAL):
    until("driver that is ready", lambda: driver_is_ready(node, release))


def age_journal(state):
    """The kernel's boot id, by which the driver knows a boot, cannot be changed here: what the drivers of a node have in their journals
    gets another one instead. `state` is the node's /var/lib."""
    for path in glob.glob(f"{state}/longshore*/journal/*/*"):
        with open(path, encoding="utf-8") as file:
            text, changed = re.subn(r'"boot": "[^"]*"', '"boot": "01234567-89ab-cdef-0123-456789abcdef"', file.read())
        expect(changed == 1, f"{path} has no boot id")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def kubelet_pid():
    with open("/run/kubelet.pid", encoding="utf-8") as file:
        return int(file.read())


def described(*words):
    """What an operator reads."""
    return kubectl("describe", *words).stdout


def described_as(pattern, *words, seconds=90):
    """Waits until an operator reads that."""
    seen = ""

    def found():
        nonlocal seen
        seen = described(*words)
        return re.search(pattern, seen, re.DOTALL)
    try:
        return until("text", found, seconds)
    except RuntimeError as error:
        raise Failed(f"kubectl describe {' '.join(words)}: no {pattern!r} in: {seen[-1500:]}") from error


class Cases:
    """The cases of a program."""

    def __init__(self):
        self.all = {}

    def case(self, quick=False):
        """Takes a function for a case: its name is <subject>_<condition>_<result>, its first line says what it shows. Quick ones are part
        of `make test`."""
        def take(function):
            self.all[function.__name__] = (function, quick)
            return function
        return take

    def asked(self, program):
        """The cases that the program's arguments ask for, and the report of them."""
        report = next((word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--report=")), None)
        names = [word for word in sys.argv[1:] if not word.startswith("--")]
        names = [name for name, (_, quick) in self.all.items() if names in (["all"], ["quick"]) and (quick or names == ["all"])] or names
        if unknown := [name for name in names if name not in self.all]:
            sys.exit(f"{', '.join(unknown)}: no such case; there are {', '.join(self.all)}")
        return [self.all[name][0] for name in names], Report(program, report)


class Report:
    """What passed and failed, in the form of the reports of Kubernetes' suite, for `run` to count."""

    def __init__(self, program, path=None):
        self.program, self.path, self.specs = program, path, []

    def run(self, name, function, clean=lambda: None):
        """Runs a case; `clean` only where it has failed."""
        begun, failure = time.monotonic(), None
        try:
            function()
        except (Failed, RuntimeError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            failure = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            clean()
        self.record(name, time.monotonic() - begun, failure)

    def end(self):
        """Writes the report, if it was asked for, and ends the program."""
        if self.path:
            self.write(self.path)
        sys.exit(1 if self.failed() else 0)

    def record(self, name, seconds, failure):
        self.specs.append({"ContainerHierarchyTexts": [self.program], "LeafNodeText": name, "LeafNodeType": "It", "State": "failed" if failure else "passed",
                           "RunTime": int(seconds * 1e9), "Failure": {"Message": failure or ""}})
        print(f"{'FAILED' if failure else 'ok'}: {name}: {seconds:.0f} s{': ' + failure if failure else ''}", flush=True)

    def write(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump([{"SpecReports": self.specs}], file)

    def failed(self):
        return any(spec["State"] == "failed" for spec in self.specs)
