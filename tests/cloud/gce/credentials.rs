//! Access tokens by a file of credentials: whether they are good, Google's own library says.

use std::process::{Command, Stdio};

use super::*;

/// What the cluster gives its pods, and nobody else hears but the exchange.
const SUBJECT: &str = "a-token-of-the-cluster";

impl Google {
    /// A new key of the service account, whose other keys are no longer good.
    fn new_key(&self) -> Value {
        self.order(&json!({"key": true}))["key"].clone()
    }

    /// The configuration of workload identity federation, with the cluster's token at `subject`.
    fn federation(&self, subject: &Path) -> Value {
        json!({
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": format!("http://{}/v1/token", self.address),
            "credential_source": {"file": subject},
        })
    }

    fn exchanges(&self) -> Vec<Value> {
        self.state()["exchanges"].as_array().expect("a list").clone()
    }

    fn assert_metadata_server_gave_no_token(&self) {
        let asked = self.state()["looked_up"].clone();
        let asked =
            asked.as_array().expect("a list").iter().any(|what| what.as_str().is_some_and(|what| what.ends_with("token")));
        assert!(!asked, "the metadata server was asked for a token");
    }
}

/// Not started yet, with these credentials.
fn driver(google: &Google, credentials: &Value) -> Driver {
    let driver = driver_with(google, "test", "credentialsFile: $SCRATCH/credentials.json");
    fs::write(driver.harness.path("credentials.json"), credentials.to_string()).expect("the credentials");
    fs::write(driver.harness.path("token"), SUBJECT).expect("the token");
    driver
}

fn life(driver: &Driver) -> Result<(), tonic::Status> {
    let id = driver.create("data")?;
    driver.delete(&id)
}

#[test]
fn gce_tokens_are_signed_by_the_key_of_a_service_account() {
    let Some(google) = Google::start() else { return };
    let driver = Driver { persistent: false, ..driver(&google, &google.new_key()).started() };
    let id = driver.create("data").expect("created");
    // The key is deleted, and there is another in its place.
    let key = google.new_key();
    let (_, message) = code(driver.delete(&id));
    assert!(message.contains("credentials.json (status 401)"), "{message}");
    fs::write(driver.harness.path("credentials.json"), key.to_string()).expect("the key");
    driver.delete(&id).expect("deleted");
    google.assert_metadata_server_gave_no_token();
    let log = driver.harness.log();
    let secret = key["private_key"].as_str().expect("PEM").lines().nth(1).expect("its first line").to_owned();
    assert!(!log.contains("PRIVATE KEY") && !log.contains(&secret), "{log}");
    driver.assert_clean(&google, "at the end");
}

#[test]
fn gce_tokens_are_exchanged_for_those_of_the_cluster() {
    let Some(google) = Google::start() else { return };
    for (is_json, impersonates) in [(false, false), (true, true)] {
        let plain = driver(&google, &Value::Null);
        let mut file = google.federation(&plain.harness.path("token"));
        if is_json {
            file["credential_source"]["format"] = json!({"type": "json", "subject_token_field_name": "jwt"});
            fs::write(plain.harness.path("token"), json!({"jwt": SUBJECT}).to_string()).expect("the token");
        }
        if impersonates {
            let account = "longshore@p-1.iam.gserviceaccount.com";
            let url = format!("http://{}/v1/projects/-/serviceAccounts/{account}:generateAccessToken", google.address);
            file["service_account_impersonation_url"] = url.into();
        }
        fs::write(plain.harness.path("credentials.json"), file.to_string()).expect("the credentials");
        let before = google.exchanges().len();
        let driver = plain.started();
        life(&driver).expect("made and deleted");
        let ours = google.exchanges().split_off(before);
        assert_eq!(ours.len(), 1 + usize::from(impersonates), "one token for all requests");
        google.assert_metadata_server_gave_no_token();
        assert!(!driver.harness.log().contains(SUBJECT), "{}", driver.harness.log());
        assert_eq!(by_googles_client(&google, &driver.harness.path("credentials.json")), ours);
        driver.assert_clean(&google, "at the end");
    }
}

/// What Google's own client asks for with this file.
fn by_googles_client(google: &Google, file: &Path) -> Vec<Value> {
    let before = google.exchanges().len();
    let (python, script) = (python().expect("the emulator runs by it"), include_str!("exchange.py"));
    let status = Command::new(python).args(["-c", script]).arg(file).stdin(Stdio::null()).status().expect("python");
    assert!(status.success(), "Google's client got no token");
    google.exchanges().split_off(before)
}

#[test]
fn gce_credentials_that_cannot_be_used_are_named() {
    let Some(google) = Google::start() else { return };
    let key = google.new_key();
    let mut broken = key.clone();
    broken["private_key"] = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n".into();
    let of_people = json!({"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"});
    let mut of_aws = google.federation(Path::new("/token"));
    of_aws["credential_source"] = json!({"environment_id": "aws1", "url": "http://169.254.169.254/"});
    let mut in_clear = google.federation(Path::new("/token"));
    in_clear["token_url"] = "http://sts.example.com/v1/token".into();
    for (file, words) in [
        (broken, "private_key"),
        (of_people, "service_account"),
        (of_aws, "credential_source"),
        (in_clear, "https://"),
        (json!({"type": "service_account"}), "credentials.json"),
        (google.federation(Path::new("/nowhere/token")), "/nowhere/token"),
        // Another token than the cluster's.
        (google.federation(Path::new("/proc/version")), "invalid_grant"),
    ] {
        let driver = Driver { persistent: false, ..driver(&google, &file).started() };
        let (_, message) = code(life(&driver));
        assert!(message.contains(words) && !message.contains(SUBJECT), "{words}: {message}");
    }
    google.assert_metadata_server_gave_no_token();
}
