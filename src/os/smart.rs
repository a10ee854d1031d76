//! What a SATA or SAS disk says of its own health, by smartctl(8) and its JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::deadline::within;
use super::process::{Run, Tool, run};
use super::scsi::attribute;
use super::{Result, lock};

pub const SMARTCTL: Tool = Tool { name: "smartctl", package: "smartmontools" };
/// For how long a caller waits. What comes later is there for the next one.
const PATIENCE: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(30);
/// smartd(8) asks each disk every half an hour.
const FRESH: Duration = Duration::from_secs(600);
/// FAILURE PREDICTION THRESHOLD EXCEEDED (SPC-4, additional sense codes). Others are warnings, such as of a temperature.
const FAILURE_PREDICTION: u8 = 0x5d;

/// When a disk was asked last, and what it has answered, by its sequence number.
static ASKED: Mutex<BTreeMap<u64, (Instant, Option<String>)>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Deserialize)]
struct Report {
    smart_status: Option<Status>,
}

#[derive(Debug, Deserialize)]
struct Status {
    passed: bool,
    scsi: Option<Informational>,
}

/// Of a SAS disk (SPC-4, informational exceptions).
#[derive(Debug, Deserialize)]
struct Informational {
    asc: u8,
}

/// Why the disk of this kernel name (`sdb`) expects to fail, as far as it has said. Nothing where it has no SMART, does not answer, or
/// smartctl is not installed. `sequence` ([`super::disk::Disk::sequence`]) tells it from all others: each is asked every ten minutes at most,
/// also if it does not answer, and by one smartctl.
pub fn failure(name: &str, sequence: u64) -> Option<String> {
    let mut asked = lock(&ASKED);
    let before = asked.get(&sequence).cloned();
    if let Some((_, answer)) = before.clone().filter(|(at, _)| at.elapsed() < FRESH) {
        return answer;
    }
    let before = before.and_then(|(_, answer)| answer);
    asked.insert(sequence, (Instant::now(), before.clone()));
    drop(asked);
    let name = name.to_owned();
    let answered = within(PATIENCE, move || {
        let answer = ask(&name, sequence).ok().flatten()?;
        lock(&ASKED).insert(sequence, (Instant::now(), answer.clone()));
        Some(answer)
    });
    answered.flatten().unwrap_or(before)
}

/// What the disk says; `None` where it says nothing, or another disk has its name by now.
fn ask(name: &str, sequence: u64) -> Result<Option<Option<String>>> {
    let arguments = ["--json", "--health", "--nocheck=standby,0"].map(str::to_owned).into_iter().chain([format!("/dev/{name}")]);
    let smartctl =
        Run { tool: SMARTCTL, arguments: arguments.collect(), keep: Vec::new(), stdin: Vec::new(), deadline: DEADLINE };
    // Its exit status has bits of what is wrong, and of what could not be read.
    let answer = meaning(&run(smartctl)?.stdout);
    let now = attribute(&Path::new("/sys/block").join(name), "diskseq")?;
    Ok(answer.filter(|_| now == Some(sequence.to_string())))
}

fn meaning(json: &str) -> Option<Option<String>> {
    let status = serde_json::from_str::<Report>(json).ok()?.smart_status?;
    let fails = !status.passed && status.scsi.is_none_or(|scsi| scsi.asc == FAILURE_PREDICTION);
    Some(fails.then(|| "its own assessment of its health (SMART) is that it fails".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_predicted_failure_is_one() {
        let of = |status: &str| {
            meaning(&format!("{{\"json_format_version\": [1, 0], \"device\": {{\"protocol\": \"ATA\"}}{status}}}"))
        };
        let passed = |passed: bool, more: &str| of(&format!(", \"smart_status\": {{\"passed\": {passed}{more}}}"));
        assert_eq!((passed(true, ""), passed(true, ", \"scsi\": {\"asc\": 0}")), (Some(None), Some(None)));
        assert!(passed(false, "").expect("an answer").is_some_and(|why| why.contains("SMART")));
        assert!(passed(false, ", \"scsi\": {\"asc\": 93, \"ascq\": 255}").expect("an answer").is_some());
        assert_eq!(passed(false, ", \"scsi\": {\"asc\": 11, \"ascq\": 1}"), Some(None), "a warning of its temperature");
        assert_eq!((of(""), meaning("smartctl: cannot open the device")), (None, None), "no answer");
    }
}
