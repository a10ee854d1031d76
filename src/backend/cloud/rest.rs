//! Requests to an API of JSON, as clients build them.

use serde_json::Value;

use super::bucket::Purpose;
use super::retry::Repeat;

/// A request, but for where to and who we are.
#[derive(Clone, Debug)]
pub struct Request {
    /// The API's own name of it: `disks.insert`.
    pub action: &'static str,
    method: &'static str,
    path: String,
    query: Vec<(&'static str, String)>,
    body: Option<Value>,
    pub repeat: Repeat,
    pub purpose: Purpose,
}

/// The same as it is sent.
#[derive(Clone, Debug)]
pub struct Unsigned {
    pub method: &'static str,
    /// With its query, encoded.
    pub path: String,
    /// JSON; empty where there is none.
    pub body: String,
}

impl Request {
    pub fn get(action: &'static str, path: impl Into<String>) -> Request {
        Request {
            action,
            method: "GET",
            path: path.into(),
            query: Vec::new(),
            body: None,
            repeat: Repeat::Reads,
            purpose: Purpose::Call,
        }
    }

    pub fn change(action: &'static str, method: &'static str, path: impl Into<String>, repeat: Repeat) -> Request {
        Request { method, repeat, ..Request::get(action, path) }
    }

    pub fn query(mut self, key: &'static str, value: impl Into<String>) -> Request {
        self.query.push((key, value.into()));
        self
    }

    pub fn body(self, body: Value) -> Request {
        Request { body: Some(body), ..self }
    }

    /// One of all there is, which calls that wait for a look-up go before.
    pub fn for_list(self) -> Request {
        Request { purpose: Purpose::List, ..self }
    }

    pub fn unsigned(&self) -> Unsigned {
        let mut path = self.path.clone();
        for (number, (key, value)) in self.query.iter().enumerate() {
            path += if number == 0 { "?" } else { "&" };
            path += &format!("{key}={}", encoded(value));
        }
        Unsigned { method: self.method, path, body: self.body.as_ref().map(Value::to_string).unwrap_or_default() }
    }
}

/// As a query or a form has it (RFC 3986, "unreserved characters").
pub fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_encoded() {
        let request =
            Request::get("disks.list", "zones/z/disks").query("filter", "status != \"DONE\"").query("pageToken", "a+/=");
        assert_eq!(request.unsigned().path, "zones/z/disks?filter=status%20%21%3D%20%22DONE%22&pageToken=a%2B%2F%3D");
    }
}
