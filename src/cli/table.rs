//! Tables and figures for people.

use std::time::SystemTime;

use comfy_table::{Table, presets};
use prost_types::Timestamp;

/// Rows under a header, without lines. Ends with a newline.
pub fn rows(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec()).add_rows(rows);
    finish(table)
}

/// One thing: a name and a value per line; empty values are left out. Ends with a newline.
pub fn facts(facts: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        table.add_row([name.to_owned(), value]);
    }
    finish(table)
}

fn finish(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table.trim_fmt() + "\n"
}

/// Bytes as `10 GiB`, with one decimal where it isn't a whole number of a unit.
pub fn size(bytes: i64) -> String {
    const UNITS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = UNITS.into_iter().find(|(_, shift)| bytes >= 1 << shift) else {
        return format!("{bytes} B");
    };
    let one = 1 << shift;
    if bytes % one == 0 {
        return format!("{} {unit}", bytes / one);
    }
    #[allow(clippy::cast_precision_loss, reason = "only for show")]
    let rounded = bytes as f64 / one as f64;
    format!("{rounded:.1} {unit}")
}

/// `a=1, b=2`, sorted.
pub fn map<'a>(map: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let mut pairs: Vec<_> = map.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.sort();
    pairs.join(", ")
}

/// A point in time in UTC, to the second, as RFC 3339; empty where there is none or it can't be written so.
pub fn time(time: Option<&Timestamp>) -> String {
    // The last second of the year 9999.
    const LAST: i64 = 253_402_300_799;
    let shown = time.filter(|time| (0..=LAST).contains(&time.seconds)).and_then(|time| SystemTime::try_from(*time).ok());
    shown.map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_names() {
        let text = rows(&["ID", "CAPACITY"], [vec!["image:a".to_owned(), size(1 << 30)], vec!["image:long".to_owned(), size(0)]]);
        assert_eq!(text, "ID           CAPACITY\nimage:a      1 GiB\nimage:long   0 B\n");
    }

    #[test]
    fn unknown_value_has_no_line() {
        let text = facts([("volume id", "image:a".to_owned()), ("source", String::new()), ("size", size(3 << 29))]);
        assert_eq!(text, "volume id   image:a\nsize        1.5 GiB\n");
    }

    #[test]
    fn sizes_and_times_are_for_people() {
        for (bytes, text) in [(-1, "-1 B"), (1023, "1023 B"), (1024, "1 KiB"), (500_000_000, "476.8 MiB"), (1 << 50, "1 PiB")] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(time(Some(&Timestamp { seconds: 1_000_000_000, nanos: 0 })), "2001-09-09T01:46:40Z");
        assert_eq!(time(Some(&Timestamp { seconds: i64::MAX, nanos: 0 })), "");
        assert_eq!(time(None), "");
    }
}
