//! The instance metadata service, version 2.
//!
//! It is asked within [`DEADLINE`]: which instance this is ([`super::identity`]), and what is attached to it, whenever the kubelet asks
//! how many volumes it takes.

use std::env;
use std::time::Duration;

use aws_config::imds::client::Client;
use aws_config::imds::client::error::ImdsError;
use aws_config::provider_config::ProviderConfig;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use serde::{Deserialize, Serialize};

use crate::volume::error::chain;
use crate::volume::{BackendName, Error, NodeId};

use super::limits::Taken;

/// For all that is asked at a time.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// For one answer. The service is on the same machine.
const ANSWER: Duration = Duration::from_secs(1);
/// The service may be busy, or have forgotten a token.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

const INSTANCE: &str = "instance-id";
const KIND: &str = "instance-type";
const ZONE: &str = "placement/availability-zone";
/// An ARN; an instance in a zone's data centers has none.
const OUTPOST: &str = "outpost-arn";
/// A line each.
const INTERFACES: &str = "network/interfaces/macs/";
/// A line each: `ami`, `root`, `ebs1`, `ephemeral0`. As it was when the instance was last started.
const MAPPINGS: &str = "block-device-mapping/";

/// An instance, as the instance metadata service describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub id: NodeId,
    pub zone: String,
    /// Such as `m5.large`; empty where it is not known.
    pub kind: String,
    /// The ARN of the Outpost that it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outpost: Option<String>,
}

/// The instance metadata service.
#[derive(Clone, Debug)]
pub struct Metadata {
    backend: BackendName,
    disabled: bool,
    /// Where it is not where the environment, the profile or AWS say.
    endpoint: Option<String>,
    deadline: Duration,
}

impl Metadata {
    /// At AWS_EC2_METADATA_SERVICE_ENDPOINT, else where instances have it; not asked with AWS_EC2_METADATA_DISABLED=true.
    pub fn new(backend: &BackendName) -> Metadata {
        let disabled = env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|text| text.eq_ignore_ascii_case("true"));
        Metadata { backend: backend.clone(), disabled, endpoint: None, deadline: DEADLINE }
    }

    /// Which instance this is, and where.
    ///
    /// # Errors
    /// Why it is not known.
    pub(super) fn instance(&self) -> Result<Instance, String> {
        let mut answers = self.ask(&[INSTANCE, ZONE, KIND, OUTPOST])?.into_iter();
        let mut next = || answers.next().flatten().unwrap_or_default();
        let (id, zone, kind, outpost) = (next(), next(), next(), next());
        if !is_instance(&id) {
            return Err(format!("the instance metadata service returned {id:?}, which is not an instance id"));
        }
        if zone.is_empty() {
            return Err(format!("the instance metadata service does not know {ZONE}"));
        }
        let id = id.parse().map_err(|error: Error| error.to_string())?;
        Ok(Instance { id, zone, kind, outpost: Some(outpost).filter(|arn| !arn.is_empty()) })
    }

    /// What is attached to the instance now: network interfaces come and go.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn taken(&self) -> Result<Taken, String> {
        let mut answers = self.ask(&[INTERFACES, MAPPINGS])?.into_iter().map(Option::unwrap_or_default);
        let interfaces = count(&answers.next().unwrap_or_default(), |_| true).max(1);
        let disks = 1 + count(&answers.next().unwrap_or_default(), |line| line.starts_with("ebs"));
        Ok(Taken { interfaces, disks })
    }

    /// Everything of these, one after the other; `None` for what it does not have.
    fn ask(&self, what: &[&str]) -> Result<Vec<Option<String>>, String> {
        if self.disabled {
            return Err("the instance metadata service is not to be asked (AWS_EC2_METADATA_DISABLED)".to_owned());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let late =
            |_| Err(format!("the instance metadata service did not answer within {}", humantime::format_duration(self.deadline)));
        runtime.block_on(async {
            let all = async {
                let mut answers = self.try_to_ask(what).await;
                for _ in 1..ATTEMPTS {
                    if answers.is_ok() {
                        break;
                    }
                    tokio::time::sleep(PAUSE).await;
                    answers = self.try_to_ask(what).await;
                }
                answers
            };
            tokio::time::timeout(self.deadline, all).await.unwrap_or_else(late)
        })
    }

    /// With a token of its own, since one may have become stale.
    async fn try_to_ask(&self, what: &[&str]) -> Result<Vec<Option<String>>, String> {
        let client = self.client()?;
        let mut answers = Vec::new();
        for what in what {
            answers.push(match client.get(format!("/latest/meta-data/{what}")).await {
                Ok(answer) => Some(answer.as_ref().trim().to_owned()),
                Err(ImdsError::ErrorResponse(error)) if error.response().status().as_u16() == 404 => None,
                Err(error) => return Err(words(&error)),
            });
        }
        Ok(answers)
    }

    fn client(&self) -> Result<Client, String> {
        let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
        let builder = Client::builder()
            .configure(&ProviderConfig::without_region().with_http_client(http))
            .connect_timeout(ANSWER)
            .read_timeout(ANSWER)
            .max_attempts(1);
        let builder = match &self.endpoint {
            Some(endpoint) => builder.endpoint(endpoint).map_err(|error| error.to_string())?,
            None => builder,
        };
        Ok(builder.build())
    }

    pub(super) fn down(&self, reason: &str) -> Error {
        Error::BackendUnavailable { backend: self.backend.to_string(), reason: reason.to_owned() }
    }
}

/// `i-` and 8 or 17 hexadecimal digits.
pub(super) fn is_instance(id: &str) -> bool {
    id.strip_prefix("i-")
        .is_some_and(|digits| matches!(digits.len(), 8 | 17) && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn count(lines: &str, counts: impl Fn(&str) -> bool) -> u64 {
    lines.lines().filter(|line| !line.trim().is_empty() && counts(line)).count() as u64
}

/// An answer of the service is not repeated: nobody knows what is in it.
fn words(error: &ImdsError) -> String {
    match error {
        ImdsError::ErrorResponse(error) => {
            format!("the instance metadata service answers with status {}", error.response().status().as_u16())
        }
        ImdsError::FailedToLoadToken(_) => format!(
            "the instance metadata service gives no token ({}); in a pod its answers arrive only with the host's network or a hop limit of 2 \
             (`aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2`)",
            chain(error)
        ),
        error => chain(error),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use super::*;

    /// What a request was.
    #[derive(Debug)]
    pub struct Asked {
        pub method: String,
        pub path: String,
        token: Option<String>,
    }

    /// Serves one request per connection, in a thread that ends with the process; `None` keeps the connection open without an answer.
    pub fn service(
        mut answer: impl FnMut(&Asked) -> Option<(u16, &'static str)> + Send + 'static,
    ) -> (Metadata, Receiver<Asked>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (tell, asked) = channel();
        std::thread::spawn(move || {
            let mut unanswered = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.expect("a connection");
                let Some(request) = request(&stream) else { continue };
                match answer(&request) {
                    Some((status, body)) => write!(
                        stream,
                        "HTTP/1.1 {status} Said\r\nx-aws-ec2-metadata-token-ttl-seconds: 600\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    )
                    .expect("answers"),
                    None => unanswered.push(stream),
                }
                let _ = tell.send(request);
            }
        });
        (metadata(Some(endpoint)), asked)
    }

    fn metadata(endpoint: Option<String>) -> Metadata {
        Metadata { backend: "ebs".parse().expect("a name"), disabled: false, endpoint, deadline: DEADLINE }
    }

    fn request(stream: &TcpStream) -> Option<Asked> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_ascii_lowercase(), value.to_owned()))
        });
        let token = headers.filter(|(name, _)| name == "x-aws-ec2-metadata-token").map(|(_, value)| value).last();
        Some(Asked { method, path, token })
    }

    fn known(path: &str) -> (u16, &'static str) {
        match path.strip_prefix("/latest/meta-data/").unwrap_or_default() {
            INSTANCE => (200, "i-0123456789abcdef0"),
            KIND => (200, "m5.large"),
            ZONE => (200, "eu-west-1a"),
            INTERFACES => (200, "02:29:96:8f:6a:2d/\n02:29:96:8f:6a:2e/\n"),
            MAPPINGS => (200, "ami\nebs1\nebs12\nephemeral0\nroot"),
            _ => (404, "a page that is not there"),
        }
    }

    /// Answers those with a token only.
    pub fn instance(asked: &Asked) -> Option<(u16, &'static str)> {
        Some(match (asked.method.as_str(), asked.token.as_deref()) {
            ("PUT", _) if asked.path == "/latest/api/token" => (200, "the token"),
            ("GET", Some("the token")) => known(&asked.path),
            _ => (401, "no token"),
        })
    }

    fn this() -> Instance {
        let id = "i-0123456789abcdef0".parse().expect("an id");
        Instance { id, zone: "eu-west-1a".to_owned(), kind: "m5.large".to_owned(), outpost: None }
    }

    #[test]
    fn an_instance_says_what_it_is() {
        let (metadata, asked) = service(instance);
        assert_eq!(metadata.instance().expect("an instance"), this());
        assert_eq!(metadata.taken().expect("what is attached"), Taken { interfaces: 2, disks: 3 });
        let asked: Vec<Asked> = asked.try_iter().collect();
        assert!(asked.iter().filter(|asked| asked.method == "GET").all(|asked| asked.token.is_some()), "{asked:?}");
    }

    #[test]
    fn answer_without_a_zone_or_an_id_is_none() {
        for (lacks, wanted) in [(ZONE, "does not know placement/availability-zone"), (INSTANCE, "which is not an instance id")] {
            let (metadata, _) = service(move |asked| match asked.path.ends_with(lacks) {
                true => Some((404, "a page that is not there")),
                false => instance(asked),
            });
            let error = metadata.instance().expect_err("a 404");
            assert!(error.contains(wanted) && !error.contains("a page"), "{error}");
        }
    }

    #[test]
    fn a_stale_token_is_replaced() {
        let mut tokens = ["first", "second"].into_iter().cycle();
        let (metadata, _) = service(move |asked| {
            Some(match (asked.method.as_str(), asked.token.as_deref()) {
                ("PUT", _) => (200, tokens.next().expect("two tokens are enough")),
                ("GET", Some("second")) => known(&asked.path),
                _ => (401, "stale"),
            })
        });
        assert_eq!(metadata.instance().expect("asked again"), this());
    }

    #[test]
    fn an_answer_that_does_not_come_is_asked_for_again() {
        let mut first = true;
        let (metadata, _) = service(move |asked| {
            let lost = std::mem::take(&mut first);
            if lost { None } else { instance(asked) }
        });
        assert_eq!(metadata.instance().expect("the second answer"), this());
    }

    #[test]
    fn silent_metadata_service_is_given_up_soon() {
        let begun = Instant::now();
        let (metadata, _) = service(|_| None);
        metadata.instance().expect_err("no answer");
        assert!(begun.elapsed() < DEADLINE + Duration::from_secs(2), "{:?}", begun.elapsed());
        let metadata = Metadata { deadline: Duration::from_millis(300), ..metadata };
        let error = metadata.instance().expect_err("no answer in time");
        assert!(error.contains("did not answer within 300ms"), "{error}");
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let (metadata, _) = service(|_| Some((403, "off")));
        let error = metadata.instance().expect_err("refused");
        assert!(error.contains("forbidden"), "{error}");

        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port that was closed");
        let nobody = Metadata { endpoint: Some(format!("http://{closed}")), ..metadata.clone() };
        let error = nobody.instance().expect_err("nobody there");
        assert!(error.contains("hop limit"), "{error}");

        let (metadata, asked) = service(instance);
        let error = Metadata { disabled: true, ..metadata }.instance().expect_err("disabled");
        assert!(error.contains("AWS_EC2_METADATA_DISABLED"), "{error}");
        assert_eq!(asked.try_iter().count(), 0);
    }

    #[test]
    fn machine_that_is_no_instance_is_recognised() {
        for id in ["i-0123456789abcdef0", "i-0fedcba9"] {
            assert!(is_instance(id), "{id}");
        }
        for id in ["", "i-", "worker-1", "i-0123456789abcdefg", "i-0123", "0123456789abcdef0", "mi-0123456789abcdef0"] {
            assert!(!is_instance(id), "{id}");
        }
    }
}
