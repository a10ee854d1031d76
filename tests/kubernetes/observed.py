"""What is true of an installation: of the API server's objects, a node's kernel, the pool and the driver's journal. Where no node and no
release is said, it is the first node and the release with local volumes."""

import dataclasses
import glob
import hashlib
import json
import os
import re

from cluster import FIRST, NAMESPACE, POOLS, command, kubectl, nodes


@dataclasses.dataclass(frozen=True)
class Release:
    """An installation of the chart."""
    name: str
    driver: str
    pool: str
    journal: str
    # Whether all nodes have the pool.
    shared: bool
    # Whether every node of a zone reaches its volumes, and only the one that they are attached to has them.
    cloud: bool = False

    @property
    def socket(self):
        return f"unix:///var/lib/kubelet/plugins/{self.driver}/csi.sock"

    @property
    def staged(self):
        """Where the kubelet has its file systems staged."""
        return f"{KUBELET}/plugins/kubernetes.io/csi/{self.driver}"


LOCAL = Release("longshore", "longshore.csi.dev", POOLS[0], "/var/lib/longshore/journal", False)
CENTRAL = Release("shared", "shared.longshore.csi.dev", f"{POOLS[1]}/longshore", "/var/lib/longshore-shared/journal", True)
CLOUD = Release("hosted", "hosted.longshore.csi.dev", "", "/var/lib/longshore-hosted/journal", False, cloud=True)
DRIVER, SOCKET, POOL, JOURNAL = LOCAL.driver, LOCAL.socket, LOCAL.pool, LOCAL.journal
KUBELET = "/var/lib/kubelet"
# The label with a local snapshot's node.
MANAGED = "snapshot.storage.kubernetes.io/managed-by"
BLOCKS = f"{KUBELET}/plugins/kubernetes.io/csi/volumeDevices"


def objects(*words):
    """The objects that `kubectl get` lists."""
    found = json.loads(kubectl("get", *words, "-o", "json").stdout)
    return found["items"] if "items" in found else [found]


def names(directory):
    """What is in a directory, which may not be there."""
    try:
        return set(os.listdir(directory))
    except FileNotFoundError:
        return set()


def processes(*parts):
    """The processes, of all nodes, whose command lines contain all of these."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                line = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if line and all(part in line for part in parts):
            found.append(int(path.split("/")[2]))
    return found


def driver_process(node=FIRST, release=LOCAL):
    """The process id of the node's driver, or nothing. Its container has the node's PID namespace."""
    def namespace(pid):
        try:
            return os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            return None
    own = namespace(node.pid())
    return max((pid for pid in processes("longshore serve", release.socket) if namespace(pid) == own), default=None)


def driver_pods(node=FIRST, release=LOCAL):
    """The node's pods of the driver."""
    return objects("pods", f"--namespace={NAMESPACE}", f"--field-selector=spec.nodeName={node.name}",
                   f"--selector=app.kubernetes.io/instance={release.name},app.kubernetes.io/component=node")


def driver_pod(node=FIRST, release=LOCAL):
    """The name of the one that is not ending, or nothing."""
    return next((pod["metadata"]["name"] for pod in driver_pods(node, release) if "deletionTimestamp" not in pod["metadata"]), None)


def driver_is_ready(node=FIRST, release=LOCAL):
    pods = driver_pods(node, release)
    return len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"] and \
        any(one["type"] == "Ready" and one["status"] == "True" for one in pods[0]["status"].get("conditions", []))


def in_driver(*words, node=FIRST, release=LOCAL, **options):
    """Runs `longshore` in the driver's container."""
    return kubectl("exec", f"--namespace={NAMESPACE}", driver_pod(node, release), "--container=longshore", "--", "longshore", *words, **options)


def mounts(node=FIRST):
    """The node's mounts: [(mount point, device number, root)]."""
    with open(f"/proc/{node.pid()}/mountinfo", encoding="utf-8") as file:
        return [(fields[4], fields[2], fields[3]) for fields in map(str.split, file)]


def is_mounted(place):
    return any(one == place for one, _, _ in mounts())


def loops(node=FIRST, release=LOCAL):
    """The loop devices over images of the pool, {device number: its volume, or nothing where the image is gone}, and the names of those
    that the kubelet has over them. Of a pool that all nodes have, all nodes': there is one kernel."""
    listed = json.loads(command("losetup", "--list", "--json", "--output=NAME,MAJ:MIN,BACK-MAJ:MIN,BACK-INO").stdout or "{}").get("loopdevices", [])
    # One that is just being detached, of anybody on the machine, has nothing below it.
    listed = [one for one in listed if one["back-maj:min"]]
    backing = {one["name"]: (one["back-maj:min"].strip(), int(one["back-ino"])) for one in listed}
    numbers = {one["name"]: one["maj:min"].strip() for one in listed}
    place = node.at(release.pool)
    pool = os.stat(place).st_dev
    pool = f"{os.major(pool)}:{os.minor(pool)}"
    images = {}
    for volume in names(f"{place}/volumes"):
        try:
            images[os.stat(f"{place}/volumes/{volume}/image").st_ino] = volume
        except FileNotFoundError:
            pass
    ours = {name: images.get(inode) for name, (device, inode) in backing.items() if device == pool}
    nodes = {(f"{os.major(node.st_dev)}:{os.minor(node.st_dev)}", node.st_ino) for node in map(os.stat, ours)}
    return {numbers[name]: volume for name, volume in ours.items()}, [name for name, one in backing.items() if one in nodes]


class Wanted:
    """What there must be on a node, by the API server's objects."""

    def __init__(self, node, release):
        self.pods = objects("pods", "--all-namespaces")
        volumes = [one for one in objects("pv") if one["spec"].get("csi", {}).get("driver") == release.driver and (release.cloud or nodes_of(one) in ([], [node.name]))]
        claims = {(one["spec"]["claimRef"]["namespace"], one["spec"]["claimRef"]["name"]): one for one in volumes if "claimRef" in one["spec"]}
        self.volumes = {volume_of(one) for one in volumes}
        contents = [one for one in objects("volumesnapshotcontents") if one["spec"]["driver"] == release.driver
                    and one["metadata"].get("labels", {}).get(MANAGED, node.name) == node.name]
        self.snapshots = {one["status"]["snapshotHandle"].partition(":")[2] for one in contents if "snapshotHandle" in one.get("status", {})}
        # Of the volumes in use there: where they are mounted, and where the kubelet keeps what it knows of those with a file system.
        self.places, self.kept = {}, set()
        # On whatever node: those in use, and which of them are raw.
        self.used, self.raw = set(), set()
        self.release, self.pods_here = release, {one["metadata"]["uid"] for one in self.pods if one["spec"].get("nodeName") == node.name}
        # Where inline volumes are mounted, of which the API server has no objects.
        self.inline = set()
        for pod in self.pods:
            if pod["status"]["phase"] in ("Succeeded", "Failed") or "nodeName" not in pod["spec"]:
                continue
            uid = pod["metadata"]["uid"]
            for one in pod["spec"].get("volumes", []):
                if one.get("csi", {}).get("driver") == release.driver and uid in self.pods_here:
                    self.inline.add(f"{KUBELET}/pods/{uid}/volumes/kubernetes.io~csi/{one['name']}/mount")
                claim = one.get("persistentVolumeClaim", {}).get("claimName")
                if volume := claims.get((pod["metadata"]["namespace"], claim)):
                    self.add(volume, uid)

    def add(self, volume, uid):
        """A volume that a pod uses."""
        self.used.add(volume_of(volume))
        raw = volume["spec"]["volumeMode"] == "Block"
        if raw:
            self.raw.add(volume_of(volume))
        if uid not in self.pods_here:
            return
        name, places = volume["metadata"]["name"], self.places.setdefault(volume_of(volume), set())
        if raw:
            # The second is the kubelet's own.
            places |= {f"{BLOCKS}/publish/{name}/{uid}", f"{BLOCKS}/{name}/dev/{uid}"}
        else:
            staging = staging_of(volume["spec"]["csi"]["volumeHandle"], self.release)
            self.kept.add(staging.split("/")[-2])
            places |= {staging, f"{KUBELET}/pods/{uid}/volumes/kubernetes.io~csi/{name}/mount"}


def nodes_of(persistent):
    """The nodes that a PersistentVolume can be used on; none are named where that is all."""
    terms = persistent["spec"].get("nodeAffinity", {}).get("required", {}).get("nodeSelectorTerms", [])
    return [value for term in terms for one in term["matchExpressions"] for value in one["values"]]


def staging_of(handle, release=LOCAL):
    """Where the kubelet has a file system staged."""
    return f"{release.staged}/{hashlib.sha256(handle.encode()).hexdigest()}/globalmount"


def volume_of(persistent):
    """The name of a PersistentVolume's directory in the pool."""
    return persistent["spec"]["csi"]["volumeHandle"].partition(":")[2]


def is_inline(volume):
    return volume.startswith("e-")


def journaled(node=FIRST, release=LOCAL):
    """The volumes of which the driver's journal has something."""
    return {one.partition(":")[2] for one in names(node.at(release.journal))}


def staged_devices(node):
    """The loop devices that the journals of a node's drivers have."""
    found = set()
    # Not those of a cloud: a machine that is off has its disks.
    for release in (LOCAL, CENTRAL):
        for path in glob.glob(f"{node.at(release.journal)}/*/stage.json"):
            try:
                with open(path, encoding="utf-8") as file:
                    found |= set(re.findall(r"/dev/loop\d+", file.read()))
            except FileNotFoundError:
                pass
    return found


def leased(volume, release=CENTRAL):
    """The node that has a volume of a shared pool for writing, or nothing."""
    try:
        with open(f"{release.pool}/volumes/{volume}/lease", encoding="utf-8") as file:
            return json.load(file)["holder"]["node"]
    except FileNotFoundError:
        return None


def granted(volume, release=CENTRAL):
    """The nodes that a volume of a shared pool is attached to."""
    try:
        with open(f"{release.pool}/volumes/{volume}/attached.json", encoding="utf-8") as file:
            return set(json.load(file)["nodes"])
    except FileNotFoundError:
        return set()


def attached(node, release):
    """The volumes that the API server has as attached to a node."""
    by_name = {one["metadata"]["name"]: volume_of(one) for one in objects("pv") if one["spec"].get("csi", {}).get("driver") == release.driver}
    return {by_name.get(one["spec"]["source"]["persistentVolumeName"]) for one in objects("volumeattachments")
            if one["spec"]["attacher"] == release.driver and one["spec"]["nodeName"] == node.name}


def differences(node=FIRST, release=LOCAL):
    """What is on the node and should not be, and what should be and is not; each in words."""
    found, wanted, pool = [], Wanted(node, release), node.at(release.pool)

    def compare(what, seen, expected):
        found.extend(f"{what} {one}: not wanted any more" for one in sorted(map(str, seen - expected)))
        found.extend(f"{what} {one}: missing" for one in sorted(map(str, expected - seen)))

    found += [f"pod {one['metadata']['name']}: is ending" for one in wanted.pods if "deletionTimestamp" in one["metadata"]]
    inline = {one for one in names(f"{pool}/volumes") if is_inline(one)}
    if len(inline) != len(wanted.inline):
        found.append(f"inline volumes in the pool: {len(inline)}, wanted {len(wanted.inline)}")
    used = set(wanted.places) | inline
    compare("volume in the pool", names(f"{pool}/volumes"), wanted.volumes | inline)
    compare("snapshot in the pool", names(f"{pool}/snapshots"), wanted.snapshots)
    for place in ("tmp", "trash", "retained", "archive"):
        found += [f"{pool}/{place}/{name}: left" for name in sorted(names(f"{pool}/{place}"))]
    numbers, above = loops(node, release)
    shown = list(numbers.values())
    compare("loop device of volume", set(shown), wanted.used | inline)
    found += [f"volume {one}: has {shown.count(one)} loop devices" for one in set(shown) if shown.count(one) > 1]
    if len(above) != len(wanted.raw):
        found.append(f"loop devices of the kubelet over raw volumes: {above}, wanted {len(wanted.raw)}")
    seen = {}
    for place, number, root in mounts(node):
        # A raw volume is a bind mount of its device's node.
        number = number if number in numbers else next((one for one in numbers if root == f"/loop{one.partition(':')[2]}"), None)
        if number:
            seen.setdefault(numbers[number], []).append(place)
    for volume in (set(wanted.places) | set(seen)) - inline:
        if sorted(seen.get(volume, [])) != sorted(wanted.places.get(volume, [])):
            found.append(f"volume {volume}: mounted at {sorted(seen.get(volume, []))}, wanted {sorted(wanted.places.get(volume, []))}")
    compare("mount of an inline volume at", {place for one in inline for place in seen.get(one, [])}, wanted.inline)
    compare("journal of volume", journaled(node, release), used)
    compare("directory of the kubelet's CSI plugin", names(node.at(release.staged)), wanted.kept)
    compare("directory of pod", names(node.at(f"{KUBELET}/pods")), wanted.pods_here)
    if release.shared:
        compare("attachment of volume", attached(node, release), used)
        compare("attached.json of volume", {one for one in wanted.volumes if node.name in granted(one, release)}, used)
        compare("lease of volume", {one for one in wanted.volumes if leased(one, release) == node.name}, used)
    return [f"{node.name}: {one}" for one in found or inspected(node, release)]


def inspected(node=FIRST, release=LOCAL):
    """What `longshore inspect` finds in the driver's pod; each in words."""
    if not driver_pod(node, release):
        return ["the driver has no pod"]
    done = in_driver("inspect", "--json", node=node, release=release, check=False)
    if done.returncode not in (0, 1, 3) or not done.stdout:
        return [f"longshore inspect: exit code {done.returncode}: {done.stderr.strip()}"]
    report = json.loads(done.stdout)
    # Loop devices are the whole machine's: that one of another's cannot be looked at is nothing of this node's, nor are those of another
    # node over the pool that both have.
    others = set().union(*(staged_devices(one) for one in nodes() if one is not node and release.shared))
    ours = {f"loop device /dev/loop{number.partition(':')[2]}" for number in loops(node, release)[0]}
    unseen = [one for one in report["notSeen"] if not str(one.get("what", "")).startswith("loop device ") or one["what"] in ours]
    return [f"longshore inspect: {one['kind']} {one['object']}: {one['what']}" for one in report["findings"] if one["object"] not in others] + \
        [f"longshore inspect: not seen: {one}" for one in unseen]
