//! What a client in Rust reads: frames of rabbitmq-msg.v1 from the proxy, with bodies and headers from any producer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::v1::ServerFrame;

mod errors;

fuzz_target!(|bytes: &[u8]| {
    // Text frames are UTF-8 before they come here; a byte that is not becomes U+FFFD, so that no mutation is in vain.
    match ServerFrame::parse(&String::from_utf8_lossy(bytes)) {
        Ok(frame) => {
            let written = frame.encode();
            assert_eq!(ServerFrame::parse(&written), Ok(frame), "written as {written}");
        }
        Err(error) => errors::check(
            &error,
            &[
                "the type is unknown, or a field is missing, of the wrong kind, or there twice",
                "body is missing, of the wrong kind, or there twice",
            ],
        ),
    }
});
