//! Whose a path of the kubelet's is.

use std::ffi::OsStr;
use std::path::Path;

/// Where the kubelet keeps raw block volumes, below its directory.
const BLOCK_DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";

/// The pod whose place a path is: `pods/<uid>/...`, or, of a raw block volume, `.../volumeDevices/publish/<volume>/<uid>` (the driver's target)
/// and `.../volumeDevices/<volume>/dev/<uid>` (a bind mount of the device, made by the kubelet).
pub(super) fn pod_of(kubelet: &Path, path: &Path) -> Option<String> {
    let below = path.strip_prefix(kubelet).ok()?;
    let uid = if let Ok(device) = below.strip_prefix(BLOCK_DEVICES) {
        match device.iter().collect::<Vec<&OsStr>>().as_slice() {
            [publish, _, uid, ..] if *publish == "publish" => *uid,
            [_, dev, uid] if *dev == "dev" => *uid,
            _ => return None,
        }
    } else {
        match below.iter().collect::<Vec<&OsStr>>().as_slice() {
            [pods, uid, _, ..] if *pods == "pods" => *uid,
            _ => return None,
        }
    };
    Some(uid.to_string_lossy().into_owned())
}

/// Whether a pod's place is the bind mount that the kubelet makes of a raw block volume's device.
pub(super) fn is_device_map(kubelet: &Path, path: &Path) -> bool {
    let Ok(device) = path.strip_prefix(kubelet.join(BLOCK_DEVICES)) else { return false };
    device.iter().nth(1).is_some_and(|dev| dev == "dev")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_known_by_the_kubelets_paths() {
        let pod = |path: &str| pod_of(Path::new("/k"), Path::new(path));
        assert_eq!(pod("/k/pods/uid/volumes/kubernetes.io~csi/a/mount").as_deref(), Some("uid"));
        assert_eq!(pod("/k/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/uid").as_deref(), Some("uid"));
        assert_eq!(pod("/k/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/uid").as_deref(), Some("uid"));
        for none in [
            "/k/plugins/kubernetes.io/csi/longshore.csi.dev/1/globalmount",
            "/k/pods",
            "/k/pods/uid",
            "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1",
            "/elsewhere/pods/a/b",
        ] {
            assert_eq!(pod(none), None, "{none}");
        }
    }
}
