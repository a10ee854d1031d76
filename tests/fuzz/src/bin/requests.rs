//! Every request of every service, from arbitrary bytes: the first one says which.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longshore::rpc::fuzzing::REQUESTS;
use tonic::Code;

/// In the secrets of each request.
const SECRET: &str = "correct-horse-battery-staple";

fuzz_target!(|data: &[u8]| {
    let Some((which, bytes)) = data.split_first() else { return };
    // The input itself may hold it by now, anywhere.
    if bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()) {
        return;
    }
    let (rpc, attempt) = REQUESTS[usize::from(*which) % REQUESTS.len()];
    let Some(tried) = attempt(bytes, SECRET) else { return };
    assert!(!tried.shown.contains(SECRET), "{} prints its secrets: {}", rpc.name(), tried.shown);
    match tried.decoded {
        Ok(decoded) => assert!(!decoded.contains(SECRET), "{} keeps its secrets in the open: {decoded}", rpc.name()),
        Err(status) => {
            let refused = [Code::InvalidArgument, Code::OutOfRange, Code::NotFound, Code::FailedPrecondition];
            assert!(refused.contains(&status.code()), "{}: {status:?}", rpc.name());
            assert!(!status.message().contains(SECRET), "{} tells its secrets: {status:?}", rpc.name());
            assert!(!status.message().is_empty() && status.message().len() < 2100, "{}: {status:?}", rpc.name());
        }
    }
});
