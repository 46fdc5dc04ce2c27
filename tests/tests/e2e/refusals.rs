//! Every refusal before the upgrade is a complete HTTP answer, read from a raw socket, and never shows a token.

use rig::http::{Answer, exchange};
use rig::tokens::{SECRET, signed, signed_with, token, unix_time, unsigned};
use rig::{Dial, Node, PATIENCE, Proxy, ProxyProcess, Vhost};
use serde_json::{Value, json};

/// The public half of a key pair: public, so anyone can sign with its bytes.
const PUBLIC_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
    -----END PUBLIC KEY-----\n";

fn alice(exp: i64) -> Value {
    json!({"sub": "alice", "exp": unix_time(exp)})
}

fn with(mut claims: Value, name: &str, value: impl Into<Value>) -> Value {
    claims[name] = value.into();
    claims
}

/// Tokens that must not pass, by what is wrong with them.
fn bad_tokens() -> Vec<(&'static str, String)> {
    let good = signed(&alice(3600));
    let (head, rest) = good.split_once('.').unwrap();
    let changed = signed(&with(alice(3600), "sub", "bob"));
    let signature = good.rsplit_once('.').unwrap().1;
    let swapped = format!("{}.{signature}", changed.rsplit_once('.').unwrap().0);
    vec![
        ("no token at all", "abc".to_owned()),
        ("two parts", format!("{head}.{}", rest.split_once('.').unwrap().0)),
        ("not base64url", format!("{good}+")),
        ("another's signature", swapped),
        ("another key", signed_with(b"another key, as long as it has to be, or longer", &alice(3600))),
        ("signed with a public key's bytes", signed_with(PUBLIC_KEY.as_bytes(), &alice(3600))),
        ("alg none", unsigned(&alice(3600))),
        ("expired", signed(&alice(-60))),
        ("never expires", signed(&json!({"sub": "alice"}))),
        ("not yet valid", signed(&with(alice(3600), "nbf", unix_time(60)))),
        ("no subject", signed(&json!({"exp": unix_time(3600)}))),
        ("empty subject", signed(&with(alice(3600), "sub", ""))),
        ("subject is a number", signed(&with(alice(3600), "sub", 7))),
    ]
}

fn check(answer: &Answer, status: u16, what: &str) {
    assert_eq!(answer.status, status, "{what}: {}", answer.text());
    assert!(answer.is_complete(), "{what}: {answer:?}");
    assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
    assert!(answer.header("connection").is_some_and(|value| value.contains("close")), "{what}");
    assert!(!answer.body.is_empty(), "{what}: a person reads it");
}

/// What of a token nobody may see.
fn secrets(token: &str) -> impl Iterator<Item = &str> {
    token.split('.').skip(1).filter(|part| part.len() > 8)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_does_not_pass_is_401_and_shown_nowhere() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &[], &[("RUST_LOG", "trace,lapin=info")]).await;
    let (dial, tokens) = (Dial::to(proxy.addr()), bad_tokens());
    let mut answers = vec![("none", exchange(proxy.addr(), dial.request().0, PATIENCE).await)];
    for (what, token) in &tokens {
        answers.push((what, exchange(proxy.addr(), dial.clone().token(token).request().0, PATIENCE).await));
        // As a browser sends it, beside a subprotocol that can be selected.
        let browser = dial.clone().subprotocol("rabbitmq-msg.raw").bearer(token).request().0;
        answers.push((what, exchange(proxy.addr(), browser, PATIENCE).await));
    }
    for (what, answer) in &answers {
        check(answer, 401, what);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"), "{what}");
    }
    // One that passes, so that the log has seen a good token too.
    let good = token("alice");
    let client = dial.subprotocol("rabbitmq-msg.raw").bearer(&good).connect().await;
    assert_eq!(client.answer.header("sec-websocket-protocol"), Some("rabbitmq-msg.raw"));
    let answered = String::from_utf8_lossy(&client.answer.raw).into_owned();
    client.close().await;
    proxy.program().signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));
    let logged = [proxy.program().stdout(), proxy.program().stderr()].concat().join("\n");
    assert!(logged.contains("does not fit the key"), "the log says why: {logged}");
    for token in tokens.iter().map(|(_, token)| token).chain([&good]) {
        for part in secrets(token) {
            assert!(!logged.contains(part), "{part} is in the log: {logged}");
            assert!(!answered.contains(part), "{part} is in the 101");
            for (what, answer) in &answers {
                assert!(!String::from_utf8_lossy(&answer.raw).contains(part), "{part} is in the answer to {what}");
            }
        }
    }
    assert!(!logged.contains(SECRET), "{logged}");
    assert!(vhost.queues().await.iter().all(|queue| queue.name.contains("alice")), "nobody else got a queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn issuer_and_audience_count_when_they_are_configured() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let strict = Proxy::start(&vhost, &["--jwt-issuer", "us", "--jwt-audience", "push"]);
    let claims = |iss: Value, aud: Value| with(with(alice(3600), "iss", iss), "aud", aud);
    let refused = [
        ("both absent", alice(3600)),
        ("no issuer", with(alice(3600), "aud", "push")),
        ("no audience", with(alice(3600), "iss", "us")),
        ("another issuer", claims("them".into(), "push".into())),
        ("another audience", claims("us".into(), json!(["pull", "pus"]))),
    ];
    for (what, claims) in refused {
        let answer =
            exchange(strict.addr(), Dial::to(strict.addr()).token(&signed(&claims)).request().0, PATIENCE).await;
        check(&answer, 401, what);
    }
    let good = signed(&claims("us".into(), json!(["pull", "push"])));
    Dial::to(strict.addr()).token(&good).connect().await.close().await;
    let open = Proxy::start(&vhost, &[]);
    Dial::to(open.addr()).token(&good).connect().await.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_passes_within_the_leeway() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    // Far enough from both edges of the 5 s for a slow machine: what is past is tried first.
    let early = signed(&with(alice(3600), "nbf", unix_time(4)));
    Dial::to(proxy.addr()).token(&signed(&alice(-1))).connect().await.close().await;
    Dial::to(proxy.addr()).token(&early).connect().await.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_no_upgrade_of_ours_are_refused_each_in_its_way() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let dial = Dial::to(proxy.addr()).consumer("alice");
    let (request, _) = dial.request();
    let longest = "i".repeat(255);
    let twice = dial.clone().target("/?instance=1&instance=2").request().0;
    let bearer_alone = Dial::to(proxy.addr()).bearer(&token("alice")).request().0;
    let unknown = dial.clone().subprotocol("graphql-ws").request().0;
    let head = |key: &'static str, value: &'static str| Some((key, value));
    let cases = [
        ("instance too long", 400, dial.clone().instance(&longest).request().0, None),
        ("instance empty", 400, dial.clone().target("/?instance=").request().0, None),
        ("two instances", 400, twice, None),
        ("bearer alone", 400, bearer_alone, None),
        ("no subprotocol of ours", 400, unknown, None),
        ("no key", 400, request.replace("Sec-WebSocket-Key", "X-Key"), None),
        ("wrong path", 404, dial.clone().target("/other").request().0, None),
        ("POST", 405, request.replacen("GET", "POST", 1), head("allow", "GET")),
        ("no upgrade", 426, request.replace("Upgrade: websocket\r\n", ""), head("upgrade", "websocket")),
        ("version 12", 426, request.replace("Version: 13", "Version: 12"), head("sec-websocket-version", "13")),
        ("no HTTP", 400, "HELLO\r\n\r\n".to_owned(), None),
        ("HTTP/1.0", 505, request.replace("HTTP/1.1", "HTTP/1.0"), None),
    ];
    let number = cases.len() as u64;
    for (what, status, request, header) in cases {
        let answer = exchange(proxy.addr(), request, PATIENCE).await;
        check(&answer, status, what);
        if let Some((name, value)) = header {
            assert_eq!(answer.header(name), Some(value), "{what}");
        }
        let raw = String::from_utf8_lossy(&answer.raw).into_owned();
        assert!(!raw.contains("eyJ"), "{what}: a token is in {raw}");
    }
    assert!(vhost.queues().await.is_empty(), "nothing was declared for anyone");
    let summary = proxy.stop().await;
    assert_eq!((summary.sessions, summary.refused), (0, number));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_without_its_broker_answers_503() {
    let proxy = Proxy::at("amqp://127.0.0.1:1/%2f", &[]);
    let answer = exchange(proxy.addr(), Dial::to(proxy.addr()).consumer("alice").request().0, PATIENCE).await;
    check(&answer, 503, "no broker");
    assert!(answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok()));
}
