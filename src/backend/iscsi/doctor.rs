//! What `longshore doctor` checks of a node of this backend.

use std::path::Path;

use crate::backend::Check;
use crate::os::settings;

pub const STARTUP: &str = "iscsi-startup";
const ISCSID: &str = "/etc/iscsi/iscsid.conf";

/// Whether iscsid logs in by itself.
pub fn startup() -> Vec<Check> {
    let check = match settings::read(Path::new(ISCSID)) {
        Ok(None) => return Vec::new(),
        Err(error) => {
            Check::warning(STARTUP, error.to_string(), "it is not known what the node activates; make the file readable")
        }
        Ok(Some(lines)) if lines.iter().any(|line| settings::has(line, "node.startup", |value| value == "automatic")) => {
            let found =
                "iscsid logs in at each boot to every target that a discovery by hand has shown (node.startup = automatic)";
            Check::warning(STARTUP, found, "set `node.startup = manual` in /etc/iscsi/iscsid.conf; the driver logs in by itself")
        }
        Ok(Some(_)) => Check::ok(STARTUP, "iscsid logs in to nothing by itself"),
    };
    vec![check]
}
