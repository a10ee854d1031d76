"""What is true of the installation with local volumes: of the API server's objects, the node's kernel, the pool and the driver's journal."""

import glob
import hashlib
import json
import os

from cluster import NAMESPACE, POOLS, command, kubectl

DRIVER = "longshore.csi.dev"
SOCKET = f"unix:///var/lib/kubelet/plugins/{DRIVER}/csi.sock"
POOL = POOLS[0]
JOURNAL = "/var/lib/longshore/journal"
KUBELET = "/var/lib/kubelet"
STAGED = f"{KUBELET}/plugins/kubernetes.io/csi/{DRIVER}"
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
    """The processes of the node whose command lines contain all of these."""
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


def driver_process():
    """The process id of the node's driver, or nothing."""
    return max(processes("longshore serve", SOCKET), default=None)


def driver_pods():
    """The node's pods of the driver."""
    return objects("pods", f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/instance=longshore,app.kubernetes.io/component=node")


def driver_pod():
    """The name of the one that is not ending, or nothing."""
    return next((pod["metadata"]["name"] for pod in driver_pods() if "deletionTimestamp" not in pod["metadata"]), None)


def driver_is_ready():
    pods = driver_pods()
    return len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"] and \
        any(one["type"] == "Ready" and one["status"] == "True" for one in pods[0]["status"].get("conditions", []))


def in_driver(*words, **options):
    """Runs `longshore` in the driver's container."""
    return kubectl("exec", f"--namespace={NAMESPACE}", driver_pod(), "--container=longshore", "--", "longshore", *words, **options)


def mounts():
    """The node's mounts: [(mount point, device number, root)]."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [(fields[4], fields[2], fields[3]) for fields in map(str.split, file)]


def is_mounted(place):
    return any(one == place for one, _, _ in mounts())


def loops():
    """The loop devices over images of the pool, {device number: its volume, or nothing where the image is gone}, and the names of those
    that the kubelet has over them."""
    listed = json.loads(command("losetup", "--list", "--json", "--output=NAME,MAJ:MIN,BACK-MAJ:MIN,BACK-INO").stdout or "{}").get("loopdevices", [])
    # One that is just being detached, of anybody on the machine, has nothing below it.
    listed = [one for one in listed if one["back-maj:min"]]
    backing = {one["name"]: (one["back-maj:min"].strip(), int(one["back-ino"])) for one in listed}
    numbers = {one["name"]: one["maj:min"].strip() for one in listed}
    pool = os.stat(POOL).st_dev
    pool = f"{os.major(pool)}:{os.minor(pool)}"
    images = {}
    for volume in names(f"{POOL}/volumes"):
        try:
            images[os.stat(f"{POOL}/volumes/{volume}/image").st_ino] = volume
        except FileNotFoundError:
            pass
    ours = {name: images.get(inode) for name, (device, inode) in backing.items() if device == pool}
    nodes = {(f"{os.major(node.st_dev)}:{os.minor(node.st_dev)}", node.st_ino) for node in map(os.stat, ours)}
    return {numbers[name]: volume for name, volume in ours.items()}, [name for name, one in backing.items() if one in nodes]


class Wanted:
    """What there must be, by the API server's objects."""

    def __init__(self):
        self.pods = objects("pods", "--all-namespaces")
        volumes = [one for one in objects("pv") if one["spec"].get("csi", {}).get("driver") == DRIVER]
        claims = {(one["spec"]["claimRef"]["namespace"], one["spec"]["claimRef"]["name"]): one for one in volumes if "claimRef" in one["spec"]}
        self.volumes = {volume_of(one) for one in volumes}
        contents = [one for one in objects("volumesnapshotcontents") if one["spec"]["driver"] == DRIVER]
        self.snapshots = {one["status"]["snapshotHandle"].partition(":")[2] for one in contents if "snapshotHandle" in one.get("status", {})}
        # Of the volumes in use: where they are mounted, which are raw, and where the kubelet keeps what it knows of the others.
        self.places, self.raw, self.kept = {}, set(), set()
        # Where inline volumes are mounted, of which the API server has no objects.
        self.inline = set()
        for pod in self.pods:
            if pod["status"]["phase"] in ("Succeeded", "Failed") or "nodeName" not in pod["spec"]:
                continue
            uid = pod["metadata"]["uid"]
            for one in pod["spec"].get("volumes", []):
                if one.get("csi", {}).get("driver") == DRIVER:
                    self.inline.add(f"{KUBELET}/pods/{uid}/volumes/kubernetes.io~csi/{one['name']}/mount")
                claim = one.get("persistentVolumeClaim", {}).get("claimName")
                if volume := claims.get((pod["metadata"]["namespace"], claim)):
                    self.add(volume, uid)

    def add(self, volume, uid):
        """A volume that a pod uses."""
        name, places = volume["metadata"]["name"], self.places.setdefault(volume_of(volume), set())
        if volume["spec"]["volumeMode"] == "Block":
            self.raw.add(volume_of(volume))
            # The second is the kubelet's own.
            places |= {f"{BLOCKS}/publish/{name}/{uid}", f"{BLOCKS}/{name}/dev/{uid}"}
        else:
            staging = staging_of(volume["spec"]["csi"]["volumeHandle"])
            self.kept.add(staging.split("/")[-2])
            places |= {staging, f"{KUBELET}/pods/{uid}/volumes/kubernetes.io~csi/{name}/mount"}


def staging_of(handle):
    """Where the kubelet has a file system staged."""
    return f"{STAGED}/{hashlib.sha256(handle.encode()).hexdigest()}/globalmount"


def volume_of(persistent):
    """The name of a PersistentVolume's directory in the pool."""
    return persistent["spec"]["csi"]["volumeHandle"].partition(":")[2]


def is_inline(volume):
    return volume.startswith("e-")


def journaled():
    """The volumes of which the driver's journal has something."""
    return {one.partition(":")[2] for one in names(JOURNAL)}


def differences():
    """What is on the node and should not be, and what should be and is not; each in words."""
    found, wanted = [], Wanted()

    def compare(what, seen, expected):
        found.extend(f"{what} {one}: not wanted any more" for one in sorted(map(str, seen - expected)))
        found.extend(f"{what} {one}: missing" for one in sorted(map(str, expected - seen)))

    found += [f"pod {one['metadata']['name']}: is ending" for one in wanted.pods if "deletionTimestamp" in one["metadata"]]
    inline = {one for one in names(f"{POOL}/volumes") if is_inline(one)}
    if len(inline) != len(wanted.inline):
        found.append(f"inline volumes in the pool: {len(inline)}, wanted {len(wanted.inline)}")
    used = set(wanted.places) | inline
    compare("volume in the pool", names(f"{POOL}/volumes"), wanted.volumes | inline)
    compare("snapshot in the pool", names(f"{POOL}/snapshots"), wanted.snapshots)
    for place in ("tmp", "trash", "retained", "archive"):
        found += [f"{POOL}/{place}/{name}: left" for name in sorted(names(f"{POOL}/{place}"))]
    numbers, above = loops()
    shown = list(numbers.values())
    compare("loop device of volume", set(shown), used)
    found += [f"volume {one}: has {shown.count(one)} loop devices" for one in set(shown) if shown.count(one) > 1]
    if len(above) != len(wanted.raw):
        found.append(f"loop devices of the kubelet over raw volumes: {above}, wanted {len(wanted.raw)}")
    seen = {}
    for place, number, root in mounts():
        # A raw volume is a bind mount of its device's node.
        number = number if number in numbers else next((one for one in numbers if root == f"/loop{one.partition(':')[2]}"), None)
        if number:
            seen.setdefault(numbers[number], []).append(place)
    for volume in (set(wanted.places) | set(seen)) - inline:
        if sorted(seen.get(volume, [])) != sorted(wanted.places.get(volume, [])):
            found.append(f"volume {volume}: mounted at {sorted(seen.get(volume, []))}, wanted {sorted(wanted.places.get(volume, []))}")
    compare("mount of an inline volume at", {place for one in inline for place in seen.get(one, [])}, wanted.inline)
    compare("journal of volume", journaled(), used)
    compare("directory of the kubelet's CSI plugin", names(STAGED), wanted.kept)
    compare("directory of pod", names(f"{KUBELET}/pods"), {one["metadata"]["uid"] for one in wanted.pods if "nodeName" in one["spec"]})
    return found or inspected()


def inspected():
    """What `longshore inspect` finds in the driver's pod; each in words."""
    if not driver_pod():
        return ["the driver has no pod"]
    done = in_driver("inspect", "--json", check=False)
    if done.returncode not in (0, 1, 3) or not done.stdout:
        return [f"longshore inspect: exit code {done.returncode}: {done.stderr.strip()}"]
    report = json.loads(done.stdout)
    # Loop devices are the whole machine's: that one of another's cannot be looked at is nothing of this node's.
    ours = {f"loop device /dev/loop{number.partition(':')[2]}" for number in loops()[0]}
    unseen = [one for one in report["notSeen"] if not str(one.get("what", "")).startswith("loop device ") or one["what"] in ours]
    return [f"longshore inspect: {one['kind']} {one['object']}: {one['what']}" for one in report["findings"]] + \
        [f"longshore inspect: not seen: {one}" for one in unseen]
