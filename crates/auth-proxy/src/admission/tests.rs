use std::time::Duration;

use protocol::names::Address;
use protocol::token::{Minter, Verifier};
use secrecy::SecretString;

use super::{Admission, NotAdmitted, admit, switching_protocols};
use crate::head::RequestHead;
use crate::refusal::Refusal;

const SECRET: &str = "a secret of this test, 32 bytes or more";

fn secret() -> SecretString {
    SecretString::from(SECRET)
}

fn verifier() -> Verifier {
    Verifier::hs256(&secret(), None, None).expect("a verifier")
}

fn token_for(consumer: &str) -> String {
    let minter = Minter::hs256(&secret()).expect("a minter");
    minter.mint(consumer, None, Duration::from_secs(60)).expect("a token")
}

/// A request that is admitted until it is changed.
struct Request {
    line: String,
    headers: Vec<(String, String)>,
}

impl Request {
    fn to(target: &str) -> Self {
        Request { line: format!("GET {target} HTTP/1.1"), headers: Vec::new() }
            .with("Host", "localhost:9000")
            .with("Connection", "keep-alive, Upgrade")
            .with("Upgrade", "WebSocket")
            .with("Sec-WebSocket-Version", "13")
            .with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
    }

    fn authorized(target: &str) -> Self {
        Request::to(target).with("Authorization", &format!("Bearer {}", token_for("alice")))
    }

    fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        let before = self.headers.len();
        self.headers.retain(|(each, _)| each != name);
        assert!(self.headers.len() < before, "{name} was there");
        self
    }

    fn replaced(self, name: &str, value: &str) -> Self {
        self.without(name).with(name, value)
    }

    fn method(mut self, method: &str) -> Self {
        self.line = self.line.replacen("GET", method, 1);
        self
    }

    fn head(&self) -> RequestHead {
        let headers: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let text = format!("{}\r\n{headers}\r\n", self.line);
        RequestHead::parse(text.as_bytes()).expect("a request").expect("complete").0
    }

    fn admit(&self) -> Result<Admission, NotAdmitted> {
        admit(&self.head(), &verifier())
    }

    #[track_caller]
    fn admitted(&self) -> Admission {
        self.admit().expect("admitted")
    }

    #[track_caller]
    fn refused(&self) -> Refusal {
        self.admit().expect_err("refused").refusal
    }
}

#[test]
fn a_valid_request_is_admitted() {
    let admission = Request::authorized("/").admitted();
    let address = Address { client: "consumer".into(), consumer: "alice".into(), instance: "1".into() };
    assert_eq!(admission.address, address);
    assert_eq!(admission.queue.as_str(), "proxy-subscription-consumer-alice-1");
    assert_eq!(admission.identity.consumer, "alice");
    assert_eq!(admission.subprotocol, None);
    // The example of RFC 6455, section 1.3.
    assert_eq!(admission.accept_key, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_eq!(
        String::from_utf8(switching_protocols(&admission)).unwrap(),
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
    );
}

#[test]
fn the_request_itself() {
    let valid = || Request::authorized("/");
    assert_eq!(valid().without("Host").refused(), Refusal::MalformedRequest);
    assert_eq!(valid().with("Host", "other").refused(), Refusal::MalformedRequest);
    for target in ["/x", "//", "/%2f", "*", "/ws?instance=1", "http://localhost/x"] {
        assert_eq!(Request::authorized(target).refused(), Refusal::Path, "{target}");
    }
    Request::authorized("http://localhost:9000?instance=2").admitted();
    for method in ["POST", "HEAD", "OPTIONS", "get", "CONNECT"] {
        assert_eq!(valid().method(method).refused(), Refusal::Method, "{method}");
    }
}

#[test]
fn the_upgrade() {
    let valid = || Request::authorized("/");
    assert_eq!(valid().without("Upgrade").refused(), Refusal::NoUpgrade);
    assert_eq!(valid().replaced("Upgrade", "h2c").refused(), Refusal::NoUpgrade);
    assert_eq!(valid().without("Connection").refused(), Refusal::NoUpgrade);
    assert_eq!(valid().replaced("Connection", "keep-alive").refused(), Refusal::NoUpgrade);
    valid().replaced("Connection", "keep-alive").with("Connection", "UPGRADE").admitted();
    valid().replaced("Upgrade", "h2c, websocket").admitted();
    assert_eq!(valid().without("Sec-WebSocket-Version").refused(), Refusal::WebSocketVersion);
    for version in ["12", "8", "13, 8", "013", ""] {
        assert_eq!(valid().replaced("Sec-WebSocket-Version", version).refused(), Refusal::WebSocketVersion);
    }
    assert_eq!(valid().with("Content-Length", "5").refused(), Refusal::RequestBody);
    assert_eq!(valid().with("Transfer-Encoding", "chunked").refused(), Refusal::RequestBody);
    valid().with("Content-Length", "0").admitted();
}

#[test]
fn the_key() {
    let valid = || Request::authorized("/");
    assert_eq!(valid().without("Sec-WebSocket-Key").refused(), Refusal::WebSocketKey);
    let repeated = valid().with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    assert_eq!(repeated.refused(), Refusal::WebSocketKey);
    for key in [
        "",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ=====",
        "dGhlIHNhbXBsZSBub25j-Q==",
        "dGhlIHNhbXBsZSBub25jZWFiYw==",
        "==",
        "żółwżółwżółw==",
    ] {
        assert_eq!(valid().replaced("Sec-WebSocket-Key", key).refused(), Refusal::WebSocketKey, "{key}");
    }
}

#[test]
fn the_token_in_the_header() {
    let token = token_for("alice");
    for value in [format!("Bearer {token}"), format!("bearer {token}"), format!("BEARER   {token} ")] {
        Request::to("/").with("Authorization", &value).admitted();
    }
    assert_eq!(Request::to("/").refused(), Refusal::Token);
    for value in [
        String::new(),
        "Bearer".into(),
        "Bearer ".into(),
        token.clone(),
        format!("Basic {token}"),
        format!("Bearer{token}"),
        format!("Bearer {token} x"),
        format!("Bearer {token}, Bearer {token}"),
        format!("Bearer {token}."),
        format!("Bearer {}", token.rsplit_once('.').expect("three parts").0),
        "Bearer ".to_owned() + &"x".repeat(14_000),
    ] {
        assert_eq!(Request::to("/").with("Authorization", &value).refused(), Refusal::Token, "{value}");
    }
    let twice = Request::authorized("/").with("Authorization", &format!("Bearer {token}"));
    assert_eq!(twice.refused(), Refusal::AmbiguousToken);
}

#[test]
fn the_token_is_never_taken_from_the_url() {
    let token = token_for("alice");
    for parameter in ["token", "access_token", "jwt", "bearer", "authorization"] {
        assert_eq!(Request::to(&format!("/?{parameter}={token}")).refused(), Refusal::Token, "{parameter}");
    }
}

#[test]
fn the_token_among_the_subprotocols() {
    let (alice, bob) = (token_for("alice"), token_for("bob"));
    let offering = |request: Request, offer: String| request.with("Sec-WebSocket-Protocol", &offer);
    for offer in [
        format!("rabbitmq-msg.raw, bearer.{alice}"),
        format!("bearer.{alice},rabbitmq-msg.raw"),
        format!("mqtt, , bearer.{alice} , rabbitmq-msg.raw, bearer.{alice}"),
    ] {
        let admission = offering(Request::to("/"), offer).admitted();
        assert_eq!(admission.subprotocol, Some("rabbitmq-msg.raw"));
        assert_eq!(admission.identity.consumer, "alice");
        let answer = String::from_utf8(switching_protocols(&admission)).unwrap();
        assert!(answer.contains("\r\nSec-WebSocket-Protocol: rabbitmq-msg.raw\r\n\r\n"), "{answer}");
        assert!(!answer.contains(&alice) && !answer.contains("bearer"), "{answer}");
    }
    let both = |token: &str| format!("rabbitmq-msg.raw, bearer.{token}");
    offering(Request::authorized("/"), both(&alice)).admitted();
    offering(Request::to("/").with("Authorization", "Basic YTpi"), both(&alice)).admitted();
    assert_eq!(offering(Request::authorized("/"), both(&bob)).refused(), Refusal::AmbiguousToken);
    let two = offering(offering(Request::to("/"), both(&alice)), format!("bearer.{bob}"));
    assert_eq!(two.refused(), Refusal::AmbiguousToken);
    assert_eq!(offering(Request::to("/"), both("")).refused(), Refusal::Token);
    assert_eq!(offering(Request::to("/"), both("a.b.c")).refused(), Refusal::Token);
    assert_eq!(offering(Request::to("/"), format!("bearer.{alice}")).refused(), Refusal::BearerAlone);
    assert_eq!(offering(Request::to("/"), format!("mqtt, bearer.{alice}")).refused(), Refusal::BearerAlone);
}

#[test]
fn the_subprotocol() {
    let offering = |offer| Request::authorized("/").with("Sec-WebSocket-Protocol", offer);
    assert_eq!(offering("rabbitmq-msg.raw").admitted().subprotocol, Some("rabbitmq-msg.raw"));
    assert_eq!(offering("mqtt, rabbitmq-msg.raw").admitted().subprotocol, Some("rabbitmq-msg.raw"));
    assert_eq!(
        offering("mqtt").with("Sec-WebSocket-Protocol", "rabbitmq-msg.raw").admitted().subprotocol,
        Some("rabbitmq-msg.raw")
    );
    assert_eq!(offering(" , ").admitted().subprotocol, None);
    for unknown in ["mqtt", "RABBITMQ-MSG.RAW", "rabbitmq-msg.raw2", "rabbitmq-msg.raw rabbitmq-msg.raw"] {
        assert_eq!(offering(unknown).refused(), Refusal::Subprotocol, "{unknown}");
    }
}

#[test]
fn the_instance() {
    for (query, instance) in [
        ("", "1"),
        ("?", "1"),
        ("?Instance=2&instances=3&x", "1"),
        ("?instance=2", "2"),
        ("?a=1&instance=2&b=&", "2"),
        ("?%69nstance=2", "2"),
        ("?instance=a=b", "a=b"),
        ("?instance=a+b%20c%2Bd", "a b c+d"),
        ("?instance=%C5%BC%F0%9F%90%A2", "ż🐢"),
        ("?instance=ż", "ż"),
        ("?instance=%2F%25%00%23*.-", "/%\0#*.-"),
    ] {
        let admission = Request::authorized(&format!("/{query}")).admitted();
        assert_eq!(admission.address.instance, instance, "{query}");
    }
    for query in [
        "?instance",
        "?instance=",
        "?instance=1&instance=1",
        "?instance=1&%69nstance=2",
        "?instance=%ff",
        "?instance=%C5",
        "?instance=50%",
        "?instance=%2",
        "?instance=%zz",
        "?instance=%+1",
    ] {
        assert_eq!(Request::authorized(&format!("/{query}")).refused(), Refusal::Instance, "{query}");
    }
}

#[test]
fn names_fit_the_queue_or_are_refused() {
    let prefix = "proxy-subscription-consumer-alice-".len();
    let longest = "i".repeat(255 - prefix);
    assert_eq!(Request::authorized(&format!("/?instance={longest}")).admitted().queue.as_str().len(), 255);
    assert_eq!(Request::authorized(&format!("/?instance={longest}i")).refused(), Refusal::NameTooLong);
    let long = Request::to("/").with("Authorization", &format!("Bearer {}", token_for(&"a".repeat(5_000))));
    assert_eq!(long.refused(), Refusal::NameTooLong);
}

#[test]
fn the_url_cannot_name_another_consumer() {
    for target in ["/?consumer=bob&sub=bob&client_id=bob&consumerId=alice&consumerId=bob", "/?instance=alice-1"] {
        let admission = Request::authorized(target).admitted();
        assert_eq!(admission.address.consumer, "alice");
        assert!(admission.queue.as_str().starts_with("proxy-subscription-consumer-alice-"), "{}", admission.queue);
    }
}

#[test]
fn the_first_failed_check_is_the_answer() {
    // Everything is wrong; then one fault after the other is mended.
    let mut request = Request {
        line: "POST /x?instance= HTTP/1.1".into(),
        headers: vec![("Sec-WebSocket-Protocol".into(), "mqtt".into())],
    };
    assert_eq!(request.refused(), Refusal::MalformedRequest);
    request = request.with("Host", "h");
    assert_eq!(request.refused(), Refusal::Path);
    request.line = "POST /?instance= HTTP/1.1".into();
    assert_eq!(request.refused(), Refusal::Method);
    request.line = "GET /?instance= HTTP/1.1".into();
    assert_eq!(request.refused(), Refusal::NoUpgrade);
    request = request.with("Connection", "Upgrade").with("Upgrade", "websocket");
    assert_eq!(request.refused(), Refusal::WebSocketVersion);
    request = request.with("Sec-WebSocket-Version", "13");
    assert_eq!(request.refused(), Refusal::WebSocketKey);
    request = request.with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    assert_eq!(request.refused(), Refusal::Token);
    request = request.with("Authorization", &format!("Bearer {}", token_for("alice")));
    assert_eq!(request.refused(), Refusal::Instance);
    request.line = "GET / HTTP/1.1".into();
    assert_eq!(request.refused(), Refusal::Subprotocol);
}

#[test]
fn the_log_tells_the_cause_and_never_the_token() {
    let other = Minter::hs256(&SecretString::from("another secret, just as long as it should be")).expect("a minter");
    let forged = other.mint("alice", None, Duration::from_secs(60)).expect("a token");
    for (token, cause) in [(forged.as_str(), "signature"), ("abc.def.ghi", "token"), ("", "token")] {
        let request = Request::to("/").with("Authorization", &format!("Bearer {token}"));
        let error = request.admit().expect_err("refused");
        let said = format!("{error} {error:?}");
        assert!(said.contains(cause), "{said}");
        assert!(token.is_empty() || !said.contains(token), "{said}");
    }
    let said = Request::to("/").admit().expect_err("refused").to_string();
    assert_eq!(said, "no token");
}

#[test]
fn the_window_is_a_number_from_1_on() {
    for (query, expected) in [
        ("", None),
        ("?window=1", Some(1)),
        ("?instance=a&window=007", Some(7)),
        ("?window=65535", Some(65_535)),
        ("?window=65536", Some(65_535)),
        ("?window=99999999999999999999999999", Some(65_535)),
    ] {
        assert_eq!(Request::authorized(&format!("/{query}")).admitted().window, expected, "{query}");
    }
    for wrong in ["0", "000", "", "-1", "+1", "1.0", "1e3", "x", "%31", "1&window=1"] {
        let refused = Request::authorized(&format!("/?window={wrong}")).refused();
        assert_eq!(refused, Refusal::Window, "{wrong}");
    }
}

#[test]
fn resume_is_true_or_false() {
    for (query, expected) in [("", false), ("?resume=false", false), ("?resume=true", true)] {
        assert_eq!(Request::authorized(&format!("/{query}")).admitted().resume, expected, "{query}");
    }
    for wrong in ["", "1", "TRUE", "true&resume=true"] {
        assert_eq!(Request::authorized(&format!("/?resume={wrong}")).refused(), Refusal::Resume, "{wrong}");
    }
}

#[test]
fn of_our_subprotocols_the_one_that_the_client_names_first_is_selected() {
    for (offered, selected) in [
        ("rabbitmq-msg.v1", "rabbitmq-msg.v1"),
        ("rabbitmq-msg.v1, rabbitmq-msg.raw", "rabbitmq-msg.v1"),
        ("mqtt, rabbitmq-msg.raw, rabbitmq-msg.v1", "rabbitmq-msg.raw"),
    ] {
        let request = Request::authorized("/").with("Sec-WebSocket-Protocol", offered);
        assert_eq!(request.admitted().subprotocol, Some(selected), "{offered}");
    }
}
