//! What the proxy reads: frames of rabbitmq-msg.v1 from whoever has a token.
#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::v1::ClientFrame;

mod errors;

fuzz_target!(|bytes: &[u8]| {
    // Text frames are UTF-8 before they come here; a byte that is not becomes U+FFFD, so that no mutation is in vain.
    match ClientFrame::parse(&String::from_utf8_lossy(bytes)) {
        Ok(frame) => {
            let written = frame.encode();
            assert_eq!(ClientFrame::parse(&written), Ok(frame), "written as {written}");
        }
        Err(error) => errors::check(
            &error,
            &[
                "unknown type",
                "type is missing, of the wrong kind, or there twice",
                "seq is missing, of the wrong kind, or there twice",
                "seq or requeue is missing, of the wrong kind, or there twice",
                "token is missing, of the wrong kind, or there twice",
            ],
        ),
    }
});
