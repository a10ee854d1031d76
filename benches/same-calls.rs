//! CreateVolume and DeleteVolume of an image backend without a driver: the system calls that strace shows of them, and nothing else.
//!
//!     rustc --edition 2024 -O benches/same-calls.rs && ./same-calls DIRECTORY PAIRS
//!
//! prints how many calls a second that makes, one after the other, and the processor time of the server in microseconds a call. A client in a process of its own sends a request over a Unix socket;
//! one thread of the server reads it, hands it to another one, and writes the answer. So its rate is the limit of any server that makes a
//! volume durable before it answers, with two threads as here, whatever it is written in.

use std::ffi::{CString, c_char, c_int, c_uint};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;
use std::{env, thread};

const AT_FDCWD: c_int = -100;
const RENAME_NOREPLACE: c_uint = 1;
/// SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER.
const WRITE_BACK: c_uint = 1 | 2 | 4;
const F_SETLEASE: c_int = 1024;
const F_WRLCK: c_int = 1;
const F_UNLCK: c_int = 2;
const F_SETSIG: c_int = 10;
const SIGURG: c_int = 23;
const CLOCK_PROCESS_CPUTIME_ID: c_int = 2;
/// Of a volume's metadata, in bytes.
const METADATA: [u8; 403] = [b' '; 403];
const ANSWER: [u8; 305] = [b' '; 305];

unsafe extern "C" {
    fn renameat2(from_directory: c_int, from: *const c_char, to_directory: c_int, to: *const c_char, flags: c_uint) -> c_int;
    fn sync_file_range(fd: c_int, offset: i64, bytes: i64, flags: c_uint) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int;
    /// The time is in seconds and nanoseconds.
    fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "client", socket, pairs] => client(UnixStream::connect(socket).expect("connect"), pairs.parse().expect("a number")),
        [_, directory, pairs] => serve(Path::new(directory), pairs),
        _ => panic!("usage: same-calls DIRECTORY PAIRS"),
    }
}

fn serve(directory: &Path, pairs: &str) {
    for name in ["tmp", "volumes", "trash"] {
        fs::create_dir_all(directory.join(name)).expect("mkdir");
    }
    File::create(directory.join("index")).expect("create");
    let socket = directory.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
    let mut client = Command::new(env::current_exe().expect("itself"))
        .args([Path::new("client"), &socket, Path::new(pairs)])
        .stdin(Stdio::null())
        .spawn()
        .expect("spawn");
    let (mut stream, _) = listener.accept().expect("accept");
    let (to_worker, requests) = mpsc::channel::<[u8; 42]>();
    let (to_reader, answers) = mpsc::channel::<()>();
    let pool = directory.to_owned();
    let worker = thread::spawn(move || {
        let log = OpenOptions::new().append(true).open("/dev/null").expect("open");
        for request in requests {
            if request[0] == b'c' {
                create(&pool)
            } else {
                delete(&pool)
            }
            (&log).write_all(&[b' '; 238]).expect("write");
            to_reader.send(()).expect("send");
        }
    });
    let mut request = [0; 42];
    let (begun, processor) = (Instant::now(), processor_time());
    while stream.read_exact(&mut request).is_ok() {
        to_worker.send(request).expect("send");
        answers.recv().expect("an answer");
        stream.write_all(&ANSWER).expect("write");
    }
    let calls = 2.0 * pairs.parse::<f64>().expect("a number");
    println!("{:.0} {:.0}", calls / begun.elapsed().as_secs_f64(), (processor_time() - processor) / calls);
    drop(to_worker);
    worker.join().expect("the worker");
    assert!(client.wait().expect("wait").success());
    fs::remove_file(socket).expect("remove");
}

fn client(mut stream: UnixStream, pairs: u32) {
    let mut answer = ANSWER;
    for _ in 0..pairs {
        for request in [[b'c'; 42], [b'd'; 42]] {
            stream.write_all(&request).expect("write");
            stream.read_exact(&mut answer).expect("an answer");
        }
    }
}

/// Of this process, in microseconds.
fn processor_time() -> f64 {
    let mut time = [0; 2];
    // SAFETY: the kernel writes two numbers of 64 bits, which is what a timespec is there.
    assert_eq!(unsafe { clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    time[0] as f64 * 1e6 + time[1] as f64 / 1e3
}

fn create(pool: &Path) {
    let (draft, placed) = (pool.join("tmp/volume~v"), pool.join("volumes/v"));
    look(pool);
    assert!(!placed.exists());
    look(&pool.join("volumes"));
    look(pool);
    assert!(!draft.exists() && !pool.join("trash/volume~v").exists());
    look(pool);
    fs::create_dir(&draft).expect("mkdir");
    let new = |name: &str| OpenOptions::new().read(true).write(true).create_new(true).open(draft.join(name)).expect("create");
    let image = new("image");
    image.set_len(64 << 20).expect("ftruncate");
    let mut metadata = new("meta.json");
    metadata.write_all(&METADATA).expect("write");
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { sync_file_range(metadata.as_raw_fd(), 0, 0, WRITE_BACK) }, 0);
    metadata.metadata().expect("stat");
    drop(metadata);
    rename(&draft, &placed);
    sync(&pool.join("volumes"));
    drop(image);
    let mut index = OpenOptions::new().append(true).open(pool.join("index")).expect("open");
    index.metadata().expect("stat");
    index.write_all(&[b' '; 76]).expect("write");
}

fn delete(pool: &Path) {
    let (placed, trash) = (pool.join("volumes/v"), pool.join("trash/volume~v"));
    assert!(!pool.join("journal").exists());
    look(pool);
    look(&placed);
    look(&placed.join("image"));
    fs::read(placed.join("meta.json")).expect("read");
    look(pool);
    let image = File::open(placed.join("image")).expect("open");
    for (command, argument) in [(F_SETSIG, SIGURG), (F_SETLEASE, F_WRLCK), (F_SETLEASE, F_UNLCK)] {
        // SAFETY: the descriptor is open. Whether a lease is given is of no interest.
        unsafe { fcntl(image.as_raw_fd(), command, argument) };
    }
    drop(image);
    assert!(!pool.join("exports/v.json").exists());
    rename(&placed, &trash);
    sync(&pool.join("volumes"));
    for name in ["image", "meta.json"] {
        fs::remove_file(trash.join(name)).expect("unlink");
    }
    fs::remove_dir(&trash).expect("rmdir");
}

/// As the driver looks at what is there: opens it without a way to read it, and closes it.
fn look(path: &Path) {
    const O_PATH: c_int = 0o10_000_000;
    let file = OpenOptions::new().read(true).custom_flags(O_PATH).open(path).expect("open");
    file.metadata().expect("stat");
}

fn rename(from: &Path, to: &Path) {
    let [from, to] = [from, to].map(|path: &Path| CString::new(path.to_str().expect("text")).expect("text"));
    // SAFETY: both are strings that end with 0.
    assert_eq!(unsafe { renameat2(AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), RENAME_NOREPLACE) }, 0);
}

fn sync(directory: &Path) {
    File::open(directory).expect("open").sync_all().expect("fsync");
}
