//! Which instance this is: by flag and configuration, else by the instance metadata service, version 2.
//!
//! The service is asked when the driver starts, within [`DEADLINE`], and only for what nothing else says; and for what is attached to the
//! instance, whenever the kubelet asks how many volumes it takes.

use std::env;
use std::time::Duration;

use aws_config::imds::client::Client;
use aws_config::imds::client::error::ImdsError;
use aws_config::provider_config::ProviderConfig;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;

use crate::volume::error::chain;
use crate::volume::{BackendName, Error, NodeId, Result};

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
const REGION: &str = "placement/region";
/// A line each.
const INTERFACES: &str = "network/interfaces/macs/";
/// A line each: `ami`, `root`, `ebs1`, `ephemeral0`. As it was when the instance was last started.
const MAPPINGS: &str = "block-device-mapping/";

/// This instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub zone: String,
    /// Such as `m5.large`; empty where nobody says it.
    pub kind: String,
    pub taken: Taken,
}

/// What the operator says, so that it need not be asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said<'a> {
    pub zone: Option<&'a str>,
    pub kind: Option<&'a str>,
    /// How many volumes the instance takes: then what is on it does not matter.
    pub limit: Option<u64>,
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

    /// The instance's id, which is the node's: `said`, if it is one.
    ///
    /// # Errors
    /// `BackendDown` with what to do.
    pub fn node_id(&self, said: Option<&NodeId>) -> Result<NodeId> {
        if let Some(said) = said.filter(|said| is_instance(said.as_str())) {
            return Ok(said.clone());
        }
        let remedy = "say which instance this is: --node-id i-0123456789abcdef0";
        let id = self.known(INSTANCE, remedy)?;
        if !is_instance(&id) {
            return Err(self.down(&format!("the instance metadata service says {id:?}, which is no instance's id; {remedy}")));
        }
        id.parse()
    }

    /// The region, where nothing else says it.
    ///
    /// # Errors
    /// `BackendDown` with what to do.
    pub fn region(&self) -> Result<String> {
        self.known(REGION, "say it in the backend's configuration (region), or by AWS_REGION")
    }

    /// The rest of what a node must know.
    ///
    /// # Errors
    /// `BackendDown` with what to do, where the zone is not known. Without the rest the limit of volumes is what most instances have.
    pub fn machine(&self, said: Said<'_>) -> Result<Machine> {
        let zone = match said.zone {
            Some(zone) => zone.to_owned(),
            None => self.known(ZONE, "say the zone in the backend's configuration (zone)")?,
        };
        if said.limit.is_some() {
            return Ok(Machine { zone, kind: String::new(), taken: Taken::default() });
        }
        let kind = if said.kind.is_some() { None } else { Some(KIND) };
        match self.ask_taken(kind) {
            Ok((taken, kind)) => Ok(Machine { zone, kind: said.kind.map(str::to_owned).or(kind).unwrap_or_default(), taken }),
            Err(reason) => {
                tracing::warn!(backend = %self.backend, reason, "it is not known what is attached to this instance; say volumeAttachLimit");
                Ok(Machine { zone, kind: said.kind.unwrap_or_default().to_owned(), taken: Taken::default() })
            }
        }
    }

    /// What is attached to the instance now: network interfaces come and go.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn taken(&self) -> Result<Taken, String> {
        self.ask_taken(None).map(|(taken, _)| taken)
    }

    /// The same, and a further answer.
    fn ask_taken(&self, further: Option<&str>) -> Result<(Taken, Option<String>), String> {
        let asked: Vec<&str> = [INTERFACES, MAPPINGS].into_iter().chain(further).collect();
        let mut answers = self.ask(&asked)?.into_iter().map(Option::unwrap_or_default);
        let interfaces = count(&answers.next().unwrap_or_default(), |_| true).max(1);
        let disks = 1 + count(&answers.next().unwrap_or_default(), |line| line.starts_with("ebs"));
        Ok((Taken { interfaces, disks }, answers.next()))
    }

    fn known(&self, what: &str, remedy: &str) -> Result<String> {
        let reason = match self.ask(&[what]).map(|mut answers| answers.pop().flatten()) {
            Ok(Some(answer)) if !answer.is_empty() => return Ok(answer),
            Ok(_) => format!("the instance metadata service does not know {what}"),
            Err(reason) => reason,
        };
        Err(self.down(&format!("{reason}; {remedy}")))
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

    fn down(&self, reason: &str) -> Error {
        Error::BackendDown { backend: self.backend.to_string(), reason: reason.to_owned() }
    }
}

/// `i-` and 8 or 17 hexadecimal digits.
fn is_instance(id: &str) -> bool {
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
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use super::super::connect::Node;
    use super::super::disks::Disks;
    use super::super::limits::Limits;
    use super::*;
    use crate::backend::Connect;

    /// What a request was.
    #[derive(Debug)]
    struct Asked {
        method: String,
        path: String,
        token: Option<String>,
    }

    /// Serves one request per connection, in a thread that ends with the process; `None` keeps the connection open without an answer.
    fn service(mut answer: impl FnMut(&Asked) -> Option<(u16, &'static str)> + Send + 'static) -> (Metadata, Receiver<Asked>) {
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
            REGION => (200, "eu-west-1"),
            INTERFACES => (200, "02:29:96:8f:6a:2d/\n02:29:96:8f:6a:2e/\n"),
            MAPPINGS => (200, "ami\nebs1\nebs12\nephemeral0\nroot"),
            _ => (404, "a page that is not there"),
        }
    }

    /// Answers those with a token only.
    fn instance(asked: &Asked) -> Option<(u16, &'static str)> {
        Some(match (asked.method.as_str(), asked.token.as_deref()) {
            ("PUT", _) if asked.path == "/latest/api/token" => (200, "the token"),
            ("GET", Some("the token")) => known(&asked.path),
            _ => (401, "no token"),
        })
    }

    #[test]
    fn an_instance_says_what_it_is() {
        let (metadata, asked) = service(instance);
        assert_eq!(metadata.node_id(None).expect("an id").as_str(), "i-0123456789abcdef0");
        assert_eq!(metadata.region().expect("a region"), "eu-west-1");
        let machine = metadata.machine(Said::default()).expect("a machine");
        let taken = Taken { interfaces: 2, disks: 3 };
        assert_eq!(machine, Machine { zone: "eu-west-1a".to_owned(), kind: "m5.large".to_owned(), taken });
        let asked: Vec<Asked> = asked.try_iter().collect();
        assert!(asked.iter().filter(|asked| asked.method == "GET").all(|asked| asked.token.is_some()), "{asked:?}");
        let error = metadata.known("no/such/thing", "say it").expect_err("a 404").to_string();
        assert!(error.contains("does not know no/such/thing; say it"), "{error}");
        assert!(!error.contains("a page"), "{error}");
    }

    #[test]
    fn what_is_said_is_not_asked() {
        let (metadata, asked) = service(instance);
        let said: NodeId = "i-0fedcba9".parse().expect("an id");
        assert_eq!(metadata.node_id(Some(&said)).expect("as said"), said);
        let machine = metadata.machine(Said { zone: Some("z"), kind: None, limit: Some(5) }).expect("as said");
        assert_eq!(machine, Machine { zone: "z".to_owned(), kind: String::new(), taken: Taken::default() });
        assert_eq!(asked.try_iter().count(), 0);
        let machine = metadata.machine(Said { zone: Some("z"), kind: Some("c5.large"), limit: None }).expect("as said");
        assert_eq!((machine.zone.as_str(), machine.kind.as_str(), machine.taken.disks), ("z", "c5.large", 3));
        // A name of Kubernetes' is no instance.
        let other: NodeId = "ip-10-0-0-1.ec2.internal".parse().expect("an id");
        assert_eq!(metadata.node_id(Some(&other)).expect("asked").as_str(), "i-0123456789abcdef0");
    }

    #[test]
    fn limit_follows_the_interfaces_attached_now() {
        let interfaces = Arc::new(AtomicUsize::new(1));
        let shown = Arc::clone(&interfaces);
        let (metadata, _) = service(move |asked| match shown.load(Ordering::SeqCst) {
            0 if asked.method == "GET" => Some((503, "busy")),
            1 if asked.path.ends_with(INTERFACES) => Some((200, "02:29:96:8f:6a:2d/\n")),
            _ => instance(asked),
        });
        let machine = metadata.machine(Said { zone: Some("z"), ..Said::default() }).expect("a machine");
        let node = Node::new(Some(&machine), &Limits::default(), Disks::default()).asking(metadata);
        // An m5.large takes 27 (28 with its first interface); 3 disks are there.
        assert_eq!(node.limit(), Some(24));
        interfaces.store(2, Ordering::SeqCst);
        assert_eq!(node.limit(), Some(23));
        // Without an answer the last one holds.
        interfaces.store(0, Ordering::SeqCst);
        assert_eq!(node.limit(), Some(23));
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
        assert_eq!(metadata.region().expect("asked again"), "eu-west-1");
    }

    #[test]
    fn an_answer_that_does_not_come_is_asked_for_again() {
        let mut first = true;
        let (metadata, _) = service(move |asked| {
            let lost = std::mem::take(&mut first);
            if lost { None } else { instance(asked) }
        });
        assert_eq!(metadata.region().expect("the second answer"), "eu-west-1");
    }

    #[test]
    fn nobody_is_waited_for_long() {
        let begun = Instant::now();
        let (metadata, _) = service(|_| None);
        let error = metadata.node_id(None).expect_err("no answer").to_string();
        assert!(begun.elapsed() < DEADLINE + Duration::from_secs(2), "{:?}", begun.elapsed());
        assert!(error.contains("--node-id i-"), "{error}");
        // The zone is said: what is attached is not worth failing for.
        let metadata = Metadata { deadline: Duration::from_millis(300), ..metadata };
        let error = metadata.region().expect_err("no answer in time").to_string();
        assert!(error.contains("did not answer within 300ms"), "{error}");
        let machine = metadata.machine(Said { zone: Some("z"), ..Said::default() }).expect("a machine");
        assert_eq!((machine.kind.as_str(), machine.taken), ("", Taken::default()));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let (metadata, _) = service(|_| Some((403, "off")));
        let error = metadata.machine(Said::default()).expect_err("refused").to_string();
        assert!(error.contains("forbidden") && error.contains("(zone)"), "{error}");

        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port that was closed");
        let nobody = Metadata { endpoint: Some(format!("http://{closed}")), ..metadata.clone() };
        let error = nobody.region().expect_err("nobody there").to_string();
        assert!(error.contains("hop limit") && error.contains("AWS_REGION"), "{error}");

        let (metadata, asked) = service(instance);
        let error = Metadata { disabled: true, ..metadata }.region().expect_err("disabled").to_string();
        assert!(error.contains("AWS_EC2_METADATA_DISABLED"), "{error}");
        assert_eq!(asked.try_iter().count(), 0);
    }

    #[test]
    fn what_is_no_instance_is_not_taken_for_one() {
        for id in ["i-0123456789abcdef0", "i-0fedcba9"] {
            assert!(is_instance(id), "{id}");
        }
        for id in ["", "i-", "worker-1", "i-0123456789abcdefg", "i-0123", "0123456789abcdef0", "mi-0123456789abcdef0"] {
            assert!(!is_instance(id), "{id}");
        }
    }
}
