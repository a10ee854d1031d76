//! The query protocol of EC2: a form with numbered names, and XML for an answer.

use std::fmt::{Display, Write};
use std::str::FromStr;
use std::time::SystemTime;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};

use crate::backend::cloud::Tags;
use crate::backend::cloud::bucket::Purpose;
use crate::backend::cloud::retry::Repeat;

/// Of EC2's API.
const VERSION: &str = "2016-11-15";

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub action: &'static str,
    pub repeat: Repeat,
    pub purpose: Purpose,
    parameters: Vec<(String, String)>,
}

impl Query {
    pub fn new(action: &'static str, repeat: Repeat) -> Query {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Query { action, repeat, purpose: Purpose::Call, parameters: vec![pair("Action", action), pair("Version", VERSION)] }
    }

    pub fn for_purpose(self, purpose: Purpose) -> Query {
        Query { purpose, ..self }
    }

    pub fn set(mut self, name: &str, value: impl Display) -> Query {
        self.parameters.push((name.to_owned(), value.to_string()));
        self
    }

    /// Where there is one.
    pub fn may_set<T: Display>(self, name: &str, value: Option<T>) -> Query {
        match value {
            Some(value) => self.set(name, value),
            None => self,
        }
    }

    /// `name.1`, `name.2`, ...
    pub fn list<T: Display>(self, name: &str, values: impl IntoIterator<Item = T>) -> Query {
        values.into_iter().zip(1..).fold(self, |query, (value, number): (T, u32)| query.set(&format!("{name}.{number}"), value))
    }

    pub fn filters(self, filters: &[Filter]) -> Query {
        filters.iter().zip(1..).fold(self, |query, (filter, number): (&Filter, u32)| {
            let query = query.set(&format!("Filter.{number}.Name"), &filter.name);
            query.list(&format!("Filter.{number}.Value"), &filter.values)
        })
    }

    pub fn tags(self, prefix: &str, tags: &Tags) -> Query {
        tags.iter().zip(1..).fold(self, |query, ((key, value), number): ((&String, &String), u32)| {
            query.set(&format!("{prefix}Tag.{number}.Key"), key).set(&format!("{prefix}Tag.{number}.Value"), value)
        })
    }

    /// The tags of what is made.
    pub fn tag_specification(self, resource: &str, tags: &Tags) -> Query {
        if tags.is_empty() {
            return self;
        }
        self.set("TagSpecification.1.ResourceType", resource).tags("TagSpecification.1.", tags)
    }

    /// application/x-www-form-urlencoded.
    pub fn form(&self) -> String {
        let pairs: Vec<String> =
            self.parameters.iter().map(|(name, value)| format!("{}={}", encoded(name, "+"), encoded(value, "+"))).collect();
        pairs.join("&")
    }
}

/// Percent-encoded, but for letters, digits and `-_.~`.
pub(super) fn encoded(text: &str, space: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            b' ' => encoded.push_str(space),
            _ => {
                // A `String` takes all that is written to it.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// Only what has one of these values is answered; by several filters what passes all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub name: String,
    /// At most 200; `*` and `?` are wildcards, a backslash takes that from them.
    pub values: Vec<String>,
}

impl Filter {
    pub fn new(name: impl Into<String>, values: impl IntoIterator<Item = impl Into<String>>) -> Filter {
        Filter { name: name.into(), values: values.into_iter().map(Into::into).collect() }
    }

    /// `tag:KEY`; the values as they are, without wildcards.
    pub fn tag(key: &str, values: impl IntoIterator<Item = impl AsRef<str>>) -> Filter {
        let plain = |value: &str| value.replace('\\', "\\\\").replace('*', "\\*").replace('?', "\\?");
        Filter::new(format!("tag:{key}"), values.into_iter().map(|value| plain(value.as_ref())))
    }
}

/// What EC2 refuses with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub code: String,
    pub message: String,
    pub request_id: Option<String>,
}

/// In EC2's own form (`<Response><Errors><Error>`), or in that of the other query services (`<ErrorResponse><Error>`).
pub(super) fn failure(xml: &str) -> Option<Failure> {
    #[derive(Deserialize)]
    struct Response {
        #[serde(rename = "Errors")]
        errors: Option<Errors>,
        #[serde(rename = "Error")]
        error: Option<Reported>,
        #[serde(rename = "RequestID", alias = "RequestId", alias = "requestId")]
        request_id: Option<String>,
    }
    #[derive(Deserialize)]
    struct Errors {
        #[serde(rename = "Error")]
        error: Vec<Reported>,
    }
    #[derive(Deserialize)]
    struct Reported {
        #[serde(rename = "Code")]
        code: String,
        #[serde(rename = "Message", default)]
        message: String,
    }
    let response: Response = quick_xml::de::from_str(xml).ok()?;
    let reported = response.error.or_else(|| response.errors?.error.into_iter().next())?;
    let request_id = response.request_id.filter(|id| !id.is_empty());
    Some(Failure { code: reported.code, message: reported.message, request_id })
}

/// # Errors
/// Where it is no XML, or not of this shape.
pub(super) fn parse<T: DeserializeOwned>(xml: &str) -> Result<T, String> {
    quick_xml::de::from_str(xml).map_err(|error| error.to_string())
}

/// `<list><item>...</item><item>...</item></list>`.
pub(super) fn items<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    struct List<T> {
        #[serde(rename = "item", default = "Vec::new")]
        items: Vec<T>,
    }
    Ok(List::deserialize(deserializer)?.items)
}

/// The only item of a list.
pub(super) fn one<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let mut items = items(deserializer)?;
    match (items.pop(), items.len()) {
        (Some(item), 0) => Ok(item),
        (_, others) => Err(D::Error::custom(format!("one item is expected, and {others} others are there"))),
    }
}

/// The last of two tags with one key wins; EC2 has no such.
pub(super) fn tags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tags, D::Error> {
    #[derive(Deserialize)]
    struct Tag {
        key: String,
        #[serde(default)]
        value: String,
    }
    Ok(items::<Tag, D>(deserializer)?.into_iter().map(|tag| (tag.key, tag.value)).collect())
}

/// A value, where the element is there and not empty.
pub(super) fn some<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(D::Error::custom) }
}

/// `2026-01-31T08:00:00.000Z`.
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    let time = DateTime::from_str(&text, Format::DateTimeWithOffset).map_err(D::Error::custom)?;
    SystemTime::try_from(time).map(Some).map_err(D::Error::custom)
}

/// `47%`, or empty.
pub(super) fn percent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.trim().trim_end_matches('%');
    if number.is_empty() { Ok(0) } else { number.parse().map_err(D::Error::custom) }
}

/// As `failure`, of the EBS direct APIs: the code is in a header, or in the body as `__type`.
pub(super) fn failure_of_json(body: &str, error_type: Option<&str>) -> Option<Failure> {
    #[derive(Deserialize)]
    struct Reported {
        #[serde(rename = "__type")]
        kind: Option<String>,
        #[serde(alias = "Message", default)]
        message: String,
        #[serde(rename = "Reason")]
        reason: Option<String>,
    }
    let reported: Reported = serde_json::from_str(body).ok()?;
    let kind = reported.kind.map(|kind| kind.rsplit('#').next().unwrap_or_default().to_owned());
    let code = error_type.map(str::to_owned).or(kind)?;
    let message = match reported.reason {
        Some(reason) => format!("{reason}: {}", reported.message),
        None => reported.message,
    };
    Some(Failure { code, message, request_id: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_has_numbered_names_and_is_encoded() {
        let tags = Tags::from([("a b".to_owned(), "ä&=+*".to_owned()), ("k".to_owned(), String::new())]);
        let query = Query::new("CreateVolume", Repeat::Harmless)
            .set("Size", 4)
            .may_set("Iops", None::<u32>)
            .filters(&[Filter::new("status", ["a", "b"])])
            .list("VolumeId", ["vol-1", "vol-2"])
            .tag_specification("volume", &tags);
        assert_eq!(
            query.form(),
            "Action=CreateVolume&Version=2016-11-15&Size=4&Filter.1.Name=status&Filter.1.Value.1=a&Filter.1.Value.2=b\
             &VolumeId.1=vol-1&VolumeId.2=vol-2&TagSpecification.1.ResourceType=volume\
             &TagSpecification.1.Tag.1.Key=a+b&TagSpecification.1.Tag.1.Value=%C3%A4%26%3D%2B%2A\
             &TagSpecification.1.Tag.2.Key=k&TagSpecification.1.Tag.2.Value="
        );
        assert_eq!(Filter::tag("k", ["a*b?\\"]), Filter::new("tag:k", ["a\\*b\\?\\\\"]));
    }

    #[test]
    fn both_forms_of_errors_are_read() {
        let own = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>VolumeInUse</Code><Message>Volume \
                   vol-1 &amp; more</Message></Error></Errors><RequestID>req-1</RequestID></Response>";
        let reported = |message: &str, request_id: Option<&str>| {
            let request_id = request_id.map(str::to_owned);
            Some(Failure { code: "VolumeInUse".to_owned(), message: message.to_owned(), request_id })
        };
        assert_eq!(failure(own), reported("Volume vol-1 & more", Some("req-1")));
        let other = "<ErrorResponse xmlns=\"https://x/\"><Error><Type>Sender</Type><Code>VolumeInUse</Code><Message/></Error>\
                     <RequestId>req-2</RequestId></ErrorResponse>";
        assert_eq!(failure(other), reported("", Some("req-2")));
        let without = "<Response><Errors><Error><Code>VolumeInUse</Code></Error></Errors></Response>";
        assert_eq!(failure(without), reported("", None));
        for no in ["", "<html><body>502</body></html>", "<Response><Errors/></Response>", "{\"a\":1}", "<Response><Err"] {
            assert_eq!(failure(no), None, "{no}");
        }
    }
}
