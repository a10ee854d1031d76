//! Other people's programs that tests need, from their registries, below target/.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

/// The directory target/`name`, into which `install` has put what `pins` says. Made at the first need, by one process: the others
/// wait. What was half made, or of other pins, is made anew. `Err` says why there can be none here.
pub fn installed(name: &str, pins: &str, install: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let directory = target.join(name);
    let done = directory.join("installed.txt");
    let text = |path: &Path| path.display().to_string();
    let lock = target.join(format!("{name}.lock"));
    let file = fs::File::create(&lock).map_err(|error| format!("{}: {error}", text(&lock)))?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| format!("{}: {error}", text(&lock)))?;
    if fs::read_to_string(&done).is_ok_and(|installed| installed == pins) {
        return Ok(directory);
    }
    fs::remove_file(&done).ok();
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", text(&directory)))?;
    install(&directory)?;
    fs::write(&done, pins).map_err(|error| format!("{}: {error}", text(&done)))?;
    Ok(directory)
}

/// A Python of its own with the packages that a file names; the dependencies of those are in it too.
pub fn python(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    run(Command::new(root.join("tests/common/python")).arg(name).arg(requirements))?;
    Ok(root.join("target").join(name).join("bin/python"))
}

/// Runs a command of an installation to its end.
pub fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("cannot be installed: {command:?}: {errors}"))
}
