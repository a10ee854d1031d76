//! The metadata server of Compute Engine, which GKE's workload identity answers for, too.

use std::env;
use std::time::Duration;

use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;

use crate::backend::cloud::http::{Lost, Sender};

/// Where it is, unless `GCE_METADATA_HOST` says otherwise, as in all of Google's libraries; by its address, since names may not be looked up.
const HOST: &str = "169.254.169.254";
/// What the server demands of requests, and has in its answers: what answers without it is another server.
const FLAVOR: (&str, &str) = ("metadata-flavor", "Google");

pub const PROJECT: &str = "project/project-id";
pub const NAME: &str = "instance/name";
/// `projects/123456789012/zones/europe-west3-a`.
pub const ZONE: &str = "instance/zone";
/// `projects/123456789012/machineTypes/n2-standard-4`.
pub const MACHINE_TYPE: &str = "instance/machine-type";
pub const TOKEN: &str = "instance/service-accounts/default/token";

#[derive(Debug)]
pub struct Metadata {
    base: String,
    sender: Sender,
}

impl Metadata {
    pub fn new(within: Duration) -> Metadata {
        let host = env::var("GCE_METADATA_HOST").ok().filter(|host| !host.is_empty());
        Metadata::at(&host.unwrap_or_else(|| HOST.to_owned()), within)
    }

    pub fn at(host: &str, within: Duration) -> Metadata {
        Metadata { base: format!("http://{host}"), sender: Sender::direct(within) }
    }

    /// What it has of this name; `None` where it has nothing.
    ///
    /// # Errors
    /// Where there is no answer, or none of a metadata server.
    pub async fn get(&self, what: &str) -> Result<Option<String>, Lost> {
        let unusable = |reason: String| Lost::Credentials(format!("the metadata server at {} {reason}", self.base));
        let request = http::Request::builder()
            .uri(format!("{}/computeMetadata/v1/{what}", self.base))
            .header(FLAVOR.0, FLAVOR.1)
            .body(SdkBody::empty())
            .map_err(|error| unusable(error.to_string()))?;
        let request = HttpRequest::try_from(request).map_err(|error| unusable(error.to_string()))?;
        let reply = self.sender.send(&self.base, request).await.map_err(|lost| match lost {
            Lost::Unsent(_, reason) | Lost::Sent(_, reason) => unusable(format!("does not answer: {reason}")),
            other => other,
        })?;
        if reply.header(FLAVOR.0) != Some(FLAVOR.1) {
            return Err(unusable("answers as another server does".to_owned()));
        }
        match reply.status {
            200 => Ok(Some(reply.body.trim().to_owned())),
            404 => Ok(None),
            // What is in the answer is not repeated: it may be a token.
            status => Err(unusable(format!("answers with status {status}"))),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves one request per connection: `answer` gets the first line of a request, and whether it has the flavor. The flavor is in the
    /// answers, unless it starts with `other`.
    pub fn server(answer: impl Fn(&str, bool) -> (u16, String) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let host = listener.local_addr().expect("an address").to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let lines = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
                let lines: Vec<String> = lines.collect();
                let Some(first) = lines.first() else { continue };
                let flavored = lines.iter().any(|line| line.eq_ignore_ascii_case("metadata-flavor: Google"));
                let (status, body) = answer(first, flavored);
                let flavor = if body.starts_with("other") { "" } else { "Metadata-Flavor: Google\r\n" };
                let head =
                    format!("HTTP/1.1 {status} Said\r\n{flavor}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                // Who asked may be gone.
                let _ = stream.write_all((head + &body).as_bytes());
            }
        });
        host
    }

    #[test]
    fn only_a_metadata_server_is_believed() {
        let host = server(|request, flavored| match request.split(' ').nth(1) {
            Some("/computeMetadata/v1/instance/zone") if flavored => (200, "projects/1/zones/z-a\n".to_owned()),
            Some("/computeMetadata/v1/instance/name") => (200, "other server".to_owned()),
            Some("/computeMetadata/v1/project/project-id") => (500, "secret".to_owned()),
            _ => (404, String::new()),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let metadata = Metadata::at(&host, Duration::from_secs(5));
        let get = |what: &'static str| runtime.block_on(metadata.get(what));
        assert_eq!(get(ZONE).expect("an answer"), Some("projects/1/zones/z-a".to_owned()));
        assert_eq!(get(MACHINE_TYPE).expect("an answer"), None);
        assert!(format!("{:?}", get(NAME).expect_err("another server")).contains("another server"));
        let error = format!("{:?}", get(PROJECT).expect_err("a failure"));
        assert!(error.contains("status 500") && !error.contains("secret"), "{error}");
    }
}
