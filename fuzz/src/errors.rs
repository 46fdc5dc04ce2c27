use protocol::v1::FrameError;

/// An error is one of our own sentences but for the place: it repeats nothing of the frame, which may hold a token.
pub fn check(error: &FrameError, faults: &[&str]) {
    let said = error.to_string();
    let place_aside = said.replace(|digit: char| digit.is_ascii_digit(), "");
    let fault = place_aside.strip_prefix("not a frame of rabbitmq-msg.v: ").unwrap_or_default();
    let ours = ["no JSON object", "bad JSON at line , column "].contains(&fault) || faults.contains(&fault);
    assert!(ours, "an error that is not only ours: {said}");
    assert!(said.len() <= 123, "does not fit into a close frame: {said}");
}
