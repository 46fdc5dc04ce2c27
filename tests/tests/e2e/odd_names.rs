//! A18, odd characters: an id in a token, in a URL, as a routing key and in a queue name is one and the same string, or
//! it is refused before the 101.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use rig::tokens::{signed, token, token_of, unix_time};
use rig::{Client, Dial, Node, Outcome, PATIENCE, Proxy, ProxyProcess, Publisher, Vhost, wait_until};
use serde_json::{Value, json};

/// The ids of the report and some that look like them, each of which works and is somebody of its own.
const IDS: &[&str] = &[
    "a",
    "A",
    "a/b",
    "a%2Fb",
    "a%2fb",
    "a%252Fb",
    "a b",
    "a+b",
    "a%20b",
    "a-b",
    "a_b",
    "a.b",
    "#",
    "*",
    "a.#",
    "a.*",
    ".",
    "..",
    "amq.x",
    " ",
    " a",
    "a ",
    "\u{c4}",
    "A\u{308}",
    "\u{e4}",
    "用户",
    "😀",
    "a\nb",
    "a\r\nb",
    "a\tb",
    "a\0b",
    "a\\nb",
    "a?b",
    "a&b",
    "a=b",
    "a;b",
    "a\"b",
    "a'b",
    "<a>",
    "{a}",
    "a\u{202e}b",
    "a\u{200b}b",
    "a\u{1b}[31mb",
    "null",
    "1",
    "1-1",
    "a-1",
    "-",
    "proxy-subscription-consumer-a-1",
    "exchange.direct",
];

/// Keys that a wildcard, a decoder, a trim or a normalisation would take for one of [`IDS`].
const NOBODY: &[&str] = &[
    "b", "a.x", "a.b.c", "a.", "x", "ab", "a  b", "  a", "a\n", "a%0Ab", "%23", "%2A", "%61", "a\u{308}", "用", "amq",
    "B",
];

/// Messages that come to one client between its own and the end would be somebody else's, or its own again.
async fn gets_exactly_its_own(client: &mut Client, id: &str) {
    assert_eq!(client.text().await, format!("for {id:?}"));
    assert_eq!(client.text().await, format!("end of {id:?}"));
}

async fn publish(publisher: &Publisher, key: &str, body: String) {
    assert_eq!(publisher.publish(key, body).await, Outcome::Confirmed, "{key:?}");
}

async fn message_and_end(publisher: &Publisher, keys: &[&str]) {
    for key in keys {
        publish(publisher, key, format!("for {key:?}")).await;
    }
    for key in NOBODY {
        assert_eq!(publisher.publish(key, "for nobody").await, Outcome::Returned, "{key:?}");
    }
    for key in keys {
        publish(publisher, key, format!("end of {key:?}")).await;
    }
}

/// All at once, so that each is a look-alike of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a18_each_odd_consumer_id_gets_exactly_its_own_messages() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut clients = Vec::new();
    for id in IDS {
        clients.push(Dial::to(proxy.addr()).consumer(id).connect().await);
    }
    assert_eq!(vhost.queues().await.len(), IDS.len(), "a mailbox each");
    message_and_end(&vhost.publisher().await, IDS).await;
    for (client, id) in clients.iter_mut().zip(IDS) {
        gets_exactly_its_own(client, id).await;
    }
    proxy.stop().await;
}

/// In the token that a browser sends as a subprotocol, and for another client than the default.
#[tokio::test(flavor = "multi_thread")]
async fn a18_odd_client_ids_share_nothing_but_the_routing_key() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut clients = Vec::new();
    for client in IDS {
        let dial = Dial::to(proxy.addr()).bearer(&token_of(client, "a")).subprotocol("rabbitmq-msg.raw");
        clients.push(dial.connect().await);
    }
    assert_eq!(vhost.queues().await.len(), IDS.len(), "a mailbox each");
    message_and_end(&vhost.publisher().await, &["a"]).await;
    for client in &mut clients {
        gets_exactly_its_own(client, "a").await;
    }
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a18_each_odd_instance_in_a_url_has_a_mailbox_of_its_own() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut clients = Vec::new();
    for instance in IDS {
        clients.push(Dial::to(proxy.addr()).consumer("a").instance(instance).connect().await);
    }
    assert_eq!(vhost.queues().await.len(), IDS.len(), "a mailbox each");
    message_and_end(&vhost.publisher().await, &["a"]).await;
    for client in &mut clients {
        gets_exactly_its_own(client, "a").await;
    }
    proxy.stop().await;
}

/// The separator of a queue name and its escape are characters like others: where a part ends is never in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn a18_no_shift_of_characters_between_client_consumer_and_instance_names_the_same_mailbox() {
    const PARTS: [&str; 6] = ["a", "a-a", "a-a-a", "a%2Da", "-", "1"];
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut clients = Vec::new();
    for client in PARTS {
        for consumer in PARTS {
            for instance in PARTS {
                let dial = Dial::to(proxy.addr()).token(&token_of(client, consumer)).instance(instance);
                clients.push((consumer, dial.connect().await));
            }
        }
    }
    let names: BTreeSet<_> = vhost.queues().await.into_iter().map(|queue| queue.name).collect();
    assert_eq!((names.len(), vhost.consumers().await.len()), (clients.len(), clients.len()));
    let publisher = vhost.publisher().await;
    message_and_end(&publisher, &PARTS).await;
    for (consumer, client) in &mut clients {
        gets_exactly_its_own(client, consumer).await;
    }
    proxy.stop().await;
}

/// Percent-encoded or not, with the `+` of forms, beside other parameters.
#[tokio::test(flavor = "multi_thread")]
async fn a18_an_instance_in_a_url_is_decoded_once_or_refused() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let queue = |instance: &str| format!("proxy-subscription-consumer-alice-{instance}");
    for (query, instance) in [
        ("", "1"),
        ("?", "1"),
        ("?other=2", "1"),
        ("?instance=a", "a"),
        ("?instance=a%20b", "a%20b"),
        ("?instance=a+b", "a%20b"),
        ("?instance=a%2Bb", "a%2Bb"),
        ("?instance=a%2520b", "a%2520b"),
        ("?instance=a/b", "a%2Fb"),
        ("?instance=a?b", "a%3Fb"),
        ("?instance=a%26b&x=y", "a%26b"),
        ("?x=y&instance=a=b", "a%3Db"),
        ("?inst%61nce=c", "c"),
    ] {
        let client = Dial::to(proxy.addr()).consumer("alice").target(&format!("/{query}")).connect().await;
        let all = vhost.consumers().await;
        assert_eq!(all.iter().map(|one| one.queue.clone()).collect::<Vec<_>>(), [queue(instance)], "{query}");
        client.close().await;
        wait_until(PATIENCE, "it has left", async || vhost.consumers().await, Vec::is_empty).await;
    }
    for query in [
        "?instance=",
        "?instance",
        "?instance=%",
        "?instance=a%2",
        "?instance=%zz",
        "?instance=%ff",
        "?instance=a&instance=b",
    ] {
        assert_eq!(
            refused(Dial::to(proxy.addr()).consumer("alice").target(&format!("/{query}"))).await,
            400,
            "{query}"
        );
    }
    proxy.stop().await;
}

/// The status of a refusal, which must be a complete answer.
async fn refused(dial: Dial) -> u16 {
    let Err(answer) = dial.try_connect().await else { panic!("not refused: {dial:?}") };
    assert!(answer.is_complete(), "{answer:?}");
    answer.status
}

fn token_with(sub: &Value, client: &Value) -> String {
    signed(&json!({"sub": sub, "client_id": client, "exp": unix_time(600)}))
}

/// What cannot be an id is refused before the 101, and a client beside it notices nothing: no channel of the proxy was
/// closed for it, and each message still arrives, once and at once.
#[tokio::test(flavor = "multi_thread")]
async fn a18_the_refusal_of_one_id_never_disturbs_another_client() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut control = Dial::to(proxy.addr()).consumer("control").connect().await;
    let publisher = vhost.publisher().await;
    let channels = async || vhost.channels().await.into_iter().map(|channel| channel.pid).collect::<BTreeSet<_>>();
    let before = channels().await;

    let (default, long) = (json!("consumer"), "用".repeat(100));
    let instance = |text: &str| Dial::to(proxy.addr()).consumer("a").instance(text);
    let with = |sub: Value, client: &Value| Dial::to(proxy.addr()).token(&token_with(&sub, client));
    let refusals = [
        (with(json!(""), &default), 401),
        (with(json!("a"), &json!("")), 401),
        (with(json!(7), &default), 401),
        (with(json!(null), &default), 401),
        (with(json!(["a"]), &default), 401),
        (with(json!("a"), &json!(7)), 401),
        (with(json!(long), &default), 400),
        (with(json!("a"), &json!(long)), 400),
        (instance(&long), 400),
        (instance(""), 400),
        (instance(&"x".repeat(300)), 400),
    ];
    for (number, (dial, status)) in refusals.into_iter().enumerate() {
        assert_eq!(refused(dial.clone()).await, status, "{number}: {dial:?}");
        publish(&publisher, "control", number.to_string()).await;
        assert_eq!(control.text().await, number.to_string());
    }
    assert_eq!(channels().await, &before | &channels_of(&vhost, "producer").await);
    assert_eq!(vhost.queues().await.len(), 1, "nobody else has a mailbox");
    proxy.stop().await;
}

async fn channels_of(vhost: &Vhost, user: &str) -> BTreeSet<String> {
    vhost.channels().await.into_iter().filter(|channel| channel.user == user).map(|channel| channel.pid).collect()
}

/// A name of 255 bytes is the longest that AMQP carries. One more is 400, in whichever part it is.
#[tokio::test(flavor = "multi_thread")]
async fn a18_a_queue_name_of_255_bytes_works_and_one_of_256_is_refused() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    // What is left for one part when the other two have a byte each; `-` and `Ä` take 3 and 6 bytes in a name.
    let room = 255 - "proxy-subscription-x-x-".len();
    let longest = |character: &str, bytes: usize| character.repeat(room / bytes) + &"x".repeat(room % bytes);
    for part in [longest("x", 1), longest("-", 3), longest("Ä", 6)] {
        let one_more = format!("{part}x");
        let dial = |client: &str, consumer: &str, instance: &str| {
            Dial::to(proxy.addr()).token(&token_of(client, consumer)).instance(instance)
        };
        let mut clients = Vec::new();
        for (dial, key) in [(dial(&part, "c", "i"), "c"), (dial("c", &part, "i"), &part), (dial("c", "c", &part), "c")]
        {
            clients.push((dial.connect().await, key));
        }
        for dial in [dial(&one_more, "c", "i"), dial("c", &one_more, "i"), dial("c", "c", &one_more)] {
            assert_eq!(refused(dial).await, 400);
        }
        let publisher = vhost.publisher().await;
        for key in ["c", &part] {
            publish(&publisher, key, format!("to {key}")).await;
        }
        for (client, key) in &mut clients {
            assert_eq!(client.text().await, format!("to {key}"));
        }
        assert!(vhost.queues().await.iter().any(|queue| queue.name.len() == 255));
    }
    proxy.stop().await;
}

/// An id that would begin a line of its own, and a body that would.
const FORGED_ID: &str = "x]\n2026-01-01T INFO x";
const FORGED: &str = "x]\n2026-01-01T00:00:00.000000Z  INFO AuthProxy 1: For consumer.victim.1: Forwarding [forged";

/// Sends odd bodies to consumers with odd ids; the lines that the proxy has printed by then.
async fn log_of(format: &str) -> Vec<String> {
    let vhost = Vhost::new(&Node::shared().await).await;
    let arguments = ["--log-messages", "--log-format", format];
    let mut proxy = ProxyProcess::start(&vhost, &arguments, &[("RUST_LOG", "debug")]).await;
    let ids = [IDS, &[FORGED_ID]].concat();
    let publisher = vhost.publisher().await;
    for id in &ids {
        exchange(proxy.addr(), &publisher, id).await;
        // A refusal is logged too.
        assert_eq!(
            refused(Dial::to(proxy.addr()).token(&token(id)).instance(&format!("{id}{}", "x".repeat(250)))).await,
            400
        );
    }
    let lines = proxy.program().wait_for_lines("Forwarding [", ids.len(), PATIENCE).await;
    assert_eq!(lines.len(), ids.len(), "{lines:#?}");
    assert!(proxy.program().stderr().is_empty());
    proxy.program().stdout()
}

async fn exchange(proxy: SocketAddr, publisher: &Publisher, id: &str) {
    let mut client = Dial::to(proxy).token(&token(id)).instance(id).connect().await;
    publish(publisher, id, format!("{id} {FORGED}")).await;
    assert_eq!(client.text().await, format!("{id} {FORGED}"));
    client.close().await;
}

/// Neither a control character nor one that rearranges what a reader sees is left in a line.
fn is_harmless(line: &str) -> bool {
    !line.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c))
}

#[tokio::test(flavor = "multi_thread")]
async fn a18_logs_hold_one_line_for_each_message_whatever_ids_and_bodies_hold() {
    let lines = log_of("text").await;
    for line in &lines {
        assert!(is_harmless(line), "{line:?}");
        // A forged line would begin with its own time.
        assert!(!line.starts_with("2026-01-01T"), "{line:?}");
        let whole = line.starts_with("listening on ") || line.split_whitespace().nth(1).is_some_and(is_level);
        assert!(whole, "{line:?} is the rest of another line");
    }
    let forged = "For consumer.victim.1: Forwarding [forged";
    assert!(lines.iter().any(|line| line.contains(r"a\nb")), "{lines:#?}");
    assert!(lines.iter().filter(|line| line.contains(forged)).all(|line| line.contains(r"x]\n2026")), "{lines:#?}");
}

fn is_level(word: &str) -> bool {
    ["ERROR", "WARN", "INFO", "DEBUG"].contains(&word)
}

#[tokio::test(flavor = "multi_thread")]
async fn a18_json_logs_are_one_object_a_line_whatever_ids_and_bodies_hold() {
    let lines = log_of("json").await;
    for line in lines.iter().filter(|line| !line.starts_with("listening on ")) {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        let message = object.get("message").and_then(Value::as_str).unwrap_or_else(|| panic!("no message in {line:?}"));
        assert!(is_harmless(message) && is_harmless(line), "{line:?}");
    }
}
