//! HTTPS, as AWS speaks it: a certificate is checked against what this machine trusts, and against the name that was asked for.

use std::net::SocketAddr;
use std::process::Child;
use std::sync::Arc;

use tonic::Code;

use super::driver::{Driver, ZONE, creation};
use super::moto;
use super::proxy::Cloud;

const SPEED: u32 = 10;

/// Takes TLS with a certificate for the name that it is given, signed by an authority of its own, whose certificate it writes, and hands
/// on in clear. Ends with its standard input; its port is printed on standard output.
const FRONT: &str = "
import datetime, ipaddress, os, socket, ssl, sys, threading
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
directory, cloud, name = sys.argv[1], (sys.argv[2], int(sys.argv[3])), sys.argv[4]
def certificate(common_name, key, issuer, issuer_key, *extensions):
    called = lambda text: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(called(common_name)).issuer_name(called(issuer)).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
def write(file, content):
    with open(os.path.join(directory, file), 'wb') as out:
        out.write(content)
    return out.name
authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
authority = certificate('authority', authority_key, 'authority', authority_key, (x509.BasicConstraints(True, None), True))
try:
    known_as = x509.IPAddress(ipaddress.ip_address(name))
except ValueError:
    known_as = x509.DNSName(name)
own = certificate('cloud', key, 'authority', authority_key, (x509.SubjectAlternativeName([known_as]), False))
private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
write('authority.pem', authority)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(write('own.pem', own), write('own.key', private))
listener = socket.create_server((cloud[0], 0))
def copy(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(plain):
    try:
        client = context.wrap_socket(plain, server_side=True)
    except OSError:
        return plain.close()
    inner = socket.create_connection(cloud)
    threading.Thread(target=copy, args=(inner, client), daemon=True).start()
    copy(client, inner)
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
";

/// Takes TLS for a server, where that is.
pub struct TlsFront {
    pub address: SocketAddr,
    process: Child,
    directory: tempfile::TempDir,
}

impl TlsFront {
    /// With a certificate for `name`.
    pub fn of(server: SocketAddr, name: &str) -> TlsFront {
        let directory = tempfile::tempdir().expect("a directory");
        let [at, ip, port] = [directory.path().display().to_string(), server.ip().to_string(), server.port().to_string()];
        let (address, process) = moto::serve(&[FRONT, &at, &ip, &port, name]).expect("as the cloud has it");
        TlsFront { address: SocketAddr::new(server.ip(), address.port()), process, directory }
    }

    /// The authority that signed the certificate.
    pub fn authority(&self) -> String {
        self.directory.path().join("authority.pem").display().to_string()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A front of the cloud, and a driver that is to go by it; not started yet.
struct Front {
    tls: TlsFront,
    driver: Driver,
}

impl Front {
    fn of(cloud: &Arc<Cloud>, instance: &str, name: &str) -> Front {
        let tls = TlsFront::of(cloud.address, name);
        let mut driver = Driver::new(cloud, SPEED, instance, &format!("https://{}", tls.address));
        driver.persistent = false;
        Front { tls, driver }
    }

    fn trusting(mut self) -> Front {
        self.driver.harness.set("SSL_CERT_FILE", &self.tls.authority());
        self
    }
}

#[test]
fn a_cloud_is_believed_only_by_its_certificate() {
    let Some(cloud) = Cloud::start(SPEED) else { return };
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);

    let mut trusted = Front::of(&cloud, &instance, "127.0.0.1").trusting();
    trusted.driver.harness.start();
    trusted.driver.persistent = true;
    trusted.driver.create("over-tls").expect("made");
    assert_eq!(cloud.moto.volumes().len(), 1);
    trusted.driver.delete("ebs:over-tls").expect("deleted");
    trusted.driver.assert_clean("after it was deleted");
    drop(trusted);

    let unknown = Front::of(&cloud, &instance, "127.0.0.1");
    let elsewhere = Front::of(&cloud, &instance, "ec2.example.org").trusting();
    for (mut front, why) in [(unknown, "UnknownIssuer"), (elsewhere, "not valid for name")] {
        front.driver.harness.start();
        let refused = front.driver.create_as(creation("not-over-tls")).expect_err("it is not believed");
        assert!(refused.code() == Code::Unavailable && refused.message().contains(why), "{refused}");
        front.driver.assert_clean("of a cloud that is not believed");
    }
}
