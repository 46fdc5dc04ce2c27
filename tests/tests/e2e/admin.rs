//! The operator's port: each count moves when what it counts happens, and the answers stay bounded and true.

mod broker_side;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::types::AMQPValue;
use nix::sys::signal::Signal;
use rig::{Counts, Dial, Message, Node, PATIENCE, Program, Proxy, ProxyProcess, Vhost, tokens, wait_until};
use serde_json::json;
use tokio::net::TcpStream;

use crate::queue;

/// The clients of these tests read, and so answer pings, only when they are asked to.
const LATE_PONGS: &[&str] = &["--pong-timeout", "1h"];

const DELIVERED: &str = "auth_proxy_messages_delivered_total";
const ACKED: &str = "auth_proxy_messages_acked_total";
const REDELIVERED: &str = "auth_proxy_messages_redelivered_total";
const OPEN_TAGS: &str = "auth_proxy_open_tags";

fn requeued(cause: &str) -> String {
    format!("auth_proxy_messages_requeued_total{{cause=\"{cause}\"}}")
}

fn rejected(cause: &str) -> String {
    format!("auth_proxy_messages_rejected_total{{cause=\"{cause}\"}}")
}

fn closes(code: &str) -> String {
    format!("auth_proxy_closes_total{{code=\"{code}\"}}")
}

fn upgrades(result: &str) -> String {
    format!("auth_proxy_upgrades_total{{result=\"{result}\"}}")
}

fn not_believed(cause: &str) -> String {
    format!("auth_proxy_messages_sent_at_not_believed_total{{cause=\"{cause}\"}}")
}

fn sessions(dialect: &str) -> String {
    format!("auth_proxy_sessions{{dialect=\"{dialect}\"}}")
}

fn check(counts: &Counts, expected: &[(&str, f64)]) {
    for (series, value) in expected {
        assert!((counts.value(series) - value).abs() < f64::EPSILON, "{series}: {} not {value}", counts.value(series));
    }
}

fn unix_micros() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(now.as_micros()).expect("the clock is before the end of time")
}

fn sent_at(consumer: &str, micros: i64) -> Message {
    let headers = vec![("x-sent-at".to_owned(), AMQPValue::LongLongInt(micros))];
    Message { headers, ..Message::new(consumer, "hello") }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_raw_client_gets_is_counted() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let admin = proxy.admin();
    let mut client = Dial::to(proxy.addr()).consumer("a").connect().await;
    // The client has its 101 a moment before the session is counted.
    admin.wait_for(&sessions("raw"), 1.0).await;
    check(&admin.counts().await, &[(&sessions("v1"), 0.0), (&upgrades("accepted"), 1.0)]);

    let publisher = vhost.publisher().await;
    publisher.send(&sent_at("a", unix_micros() - 3_000_000)).await;
    publisher.send(&sent_at("a", unix_micros() + 3_600_000_000)).await;
    // In milliseconds.
    publisher.send(&sent_at("a", unix_micros() / 1_000)).await;
    publisher.publish_all("a", ["hello"]).await;
    for _ in 0..4 {
        assert_eq!(client.text().await, "hello");
    }
    admin.wait_for(ACKED, 4.0).await;
    admin.wait_for(OPEN_TAGS, 0.0).await;
    let counts = admin.counts().await;
    let expected = [
        (DELIVERED, 4.0),
        ("auth_proxy_messages_delivered_bytes_total", 20.0),
        ("auth_proxy_delivery_to_ack_seconds_count{dialect=\"raw\"}", 4.0),
        ("auth_proxy_delivery_to_ack_seconds_count{dialect=\"v1\"}", 0.0),
        ("auth_proxy_send_to_delivery_seconds_count", 1.0),
        ("auth_proxy_send_to_delivery_seconds_bucket{le=\"2.5\"}", 0.0),
        (&not_believed("ahead"), 1.0),
        (&not_believed("long_ago"), 1.0),
        ("auth_proxy_lanes", 1.0),
        (REDELIVERED, 0.0),
    ];
    check(&counts, &expected);
    let sum = counts.value("auth_proxy_send_to_delivery_seconds_sum");
    assert!((3.0..3_600.0).contains(&sum), "{sum}");

    client.close().await;
    admin.wait_for(&sessions("raw"), 0.0).await;
    check(&admin.counts().await, &[(&closes("client"), 1.0)]);
    let summary = proxy.stop().await;
    assert_eq!((summary.sessions, summary.refused), (1, 0));
    assert_eq!((summary.delivered, summary.acked, summary.requeued, summary.rejected), (4, 4, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_of_a_message_through_v1_is_counted() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[LATE_PONGS, &["--max-message-bytes", "1024"]].concat());
    let admin = proxy.admin();
    let mut client = Dial::to(proxy.addr()).consumer("a").v1().connect().await;
    let publisher = vhost.publisher().await;
    publisher.publish_all("a", ["1", "2", "3", "4"]).await;
    publisher.publish_all("a", [vec![b'x'; 2048]]).await;
    for seq in 1..=4 {
        assert_eq!(client.message().await.seq, seq);
    }
    admin.wait_for(&rejected("too_large"), 1.0).await;
    // A client has a message a moment before that is counted.
    admin.wait_for(DELIVERED, 4.0).await;
    let before = [(ACKED, 0.0), (OPEN_TAGS, 4.0), (&sessions("v1"), 1.0)];
    check(&admin.counts().await, &before);
    let page = admin.get("/stats").await;
    let slow = page.text().lines().find(|line| line.ends_with("consumer.a.1")).expect("it has unacked messages");
    assert!(slow.contains("4 of 16") && slow.contains(&client.local_addr().to_string()), "{slow}");

    client.ack(1).await;
    client.nack(2, false).await;
    client.nack(3, true).await;
    // What went back comes again, behind those that were sent already.
    let again = client.message().await;
    assert_eq!((again.seq, again.redelivered, again.body()), (5, true, &b"3"[..]));
    admin.wait_for(DELIVERED, 5.0).await;
    let after = [
        (ACKED, 1.0),
        (&rejected("client"), 1.0),
        (&requeued("client"), 1.0),
        (REDELIVERED, 1.0),
        (OPEN_TAGS, 2.0),
        ("auth_proxy_delivery_to_ack_seconds_count{dialect=\"v1\"}", 1.0),
    ];
    check(&admin.counts().await, &after);

    client.reset();
    admin.wait_for(&closes("gone"), 1.0).await;
    check(&admin.counts().await, &[(&requeued("session_end"), 2.0), (OPEN_TAGS, 0.0), (&sessions("v1"), 0.0)]);
    let page = admin.get("/stats").await;
    assert!(page.status == 200 && !page.text().contains("consumer.a.1"), "{}", page.text());
    let summary = proxy.stop().await;
    assert_eq!((summary.delivered, summary.acked, summary.requeued, summary.rejected), (5, 1, 3, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_are_counted_by_result_and_closes_by_code() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &["--ping-interval", "1s", "--pong-timeout", "1s"]);
    let (admin, address) = (proxy.admin(), proxy.addr());
    for _ in 0..2 {
        let refused = Dial::to(address).token("no token").try_connect().await;
        assert_eq!(refused.err().map(|answer| answer.status), Some(401));
    }
    drop(TcpStream::connect(address).await.expect("it listens"));
    vhost.declare_queue(&queue("conflict"), json!({})).await;
    assert!(Dial::to(address).consumer("conflict").try_connect().await.is_err());
    for (result, count) in [("token", 2.0), ("gone", 1.0), ("queue_conflict", 1.0), ("accepted", 0.0)] {
        admin.wait_for(&upgrades(result), count).await;
    }

    let mut older = Dial::to(address).consumer("twice").connect().await;
    let newer = async {
        let newer = Dial::to(address).consumer("twice").connect().await;
        admin.wait_for(&closes("replaced"), 1.0).await;
        // It answers no ping.
        admin.wait_for(&closes("no_pong"), 1.0).await;
        drop(newer);
    };
    let (closed, ()) = tokio::join!(older.expect_close(), newer);
    assert_eq!(closed.0, 4506);
    let mut rude = Dial::to(address).consumer("rude").v1().connect().await;
    rude.send_text("{").await;
    let (_, close) = rude.until_close().await;
    assert_eq!(close.map(|(code, _)| code), Some(4501));
    admin.wait_for(&closes("contract_broken"), 1.0).await;
    let counts = admin.counts().await;
    check(&counts, &[(&upgrades("accepted"), 3.0), (&closes("client"), 0.0), (&closes("gone"), 0.0)]);
    let summary = proxy.stop().await;
    assert_eq!((summary.sessions, summary.refused), (3, 4));
}

/// Whoever is connected, and whatever they are called, the number of series is the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_consumers_add_no_series() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let admin = proxy.admin();
    let before = admin.counts().await;
    let publisher = vhost.publisher().await;
    let mut clients = Vec::new();
    for number in 0..100 {
        let consumer = format!("somebody{number}");
        let dial = Dial::to(proxy.addr()).token(&tokens::token_of(&format!("app{number}"), &consumer));
        let dial = dial.instance(&format!("tab{number}"));
        let mut client = if number % 2 == 0 { dial.connect().await } else { dial.v1().connect().await };
        publisher.publish_all(&consumer, ["hello"]).await;
        // The second half leaves with its message unread.
        match number {
            _ if number >= 50 => client.reset(),
            _ if number % 2 == 0 => assert_eq!(client.text().await, "hello"),
            _ => drop(client.take(1).await),
        }
        clients.push(consumer);
    }
    let ended = [closes("gone"), closes("client")];
    let now = async || admin.counts().await;
    let gone = |counts: &Counts| ended.iter().map(|series| counts.value(series)).sum::<f64>() >= 100.0;
    let after = wait_until(PATIENCE, "the end of all sessions", now, gone).await;
    assert_eq!(before.series(), after.series());
    let page = admin.get("/metrics").await;
    for word in ["somebody", "app1", "tab1"] {
        assert!(!page.text().contains(word), "{word} is in a label");
    }
    assert!(page.text().lines().count() < 400, "{} lines", page.text().lines().count());
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_proxy_is_alive_and_not_ready() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let arguments = [LATE_PONGS, &["--drain-timeout", "1h", "--close-timeout", "30m"]].concat();
    let mut proxy = Proxy::start(&vhost, &arguments);
    let admin = proxy.admin();
    let client = Dial::to(proxy.addr()).consumer("a").connect().await;
    assert_eq!(admin.ready().await.0, 200);
    proxy.drain();
    assert_eq!(admin.ready().await, (503, vec!["draining: this proxy is shutting down".to_owned()]));
    assert_eq!(admin.get("/healthz").await.status, 200);
    let refused = Dial::to(proxy.addr()).consumer("b").try_connect().await.err().expect("it takes nobody any more");
    assert_eq!(refused.status, 503);
    admin.wait_for(&upgrades("draining"), 1.0).await;
    proxy.force();
    proxy.ended().await;
    drop(client);
    assert!(TcpStream::connect(admin.addr()).await.is_err(), "the port ends with the proxy");
}

/// An upgrade that has not got far is no session.
#[tokio::test(flavor = "multi_thread")]
async fn only_sessions_are_counted_as_cut_off() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let arguments = [LATE_PONGS, &["--drain-timeout", "1h", "--head-timeout", "1h", "--max-heads", "1"]].concat();
    let mut proxy = Proxy::start(&vhost, &arguments);
    let client = Dial::to(proxy.addr()).consumer("a").connect().await;
    let silent = TcpStream::connect(proxy.addr()).await.expect("it listens");
    let ready = async || proxy.admin().ready().await.0;
    wait_until(PATIENCE, "its request head is waited for", ready, |status| *status == 503).await;
    proxy.force();
    let summary = proxy.ended().await;
    assert_eq!((summary.sessions, summary.cut_off), (1, 1));
    drop((client, silent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_at_one_of_its_limits_is_not_ready() {
    let vhost = Vhost::new(&Node::shared().await).await;
    // A window that leaves no room for a second one on the only lane.
    let limits = ["--max-heads", "1", "--max-lanes", "1", "--window", "2048"];
    let proxy = Proxy::start(&vhost, &[LATE_PONGS, &limits].concat());
    let admin = proxy.admin();
    let ready = async || admin.ready().await;
    wait_until(PATIENCE, "ready", ready, |(status, _)| *status == 200).await;
    let silent = TcpStream::connect(proxy.addr()).await.expect("it listens");
    let heads = (503, vec!["limit: --max-heads connections wait for their request head".to_owned()]);
    wait_until(PATIENCE, "no place for a head", ready, |now| *now == heads).await;
    drop(silent);
    wait_until(PATIENCE, "ready again", ready, |(status, _)| *status == 200).await;

    let client = Dial::to(proxy.addr()).consumer("a").connect().await;
    assert_eq!(ready().await, (503, vec!["limit: --max-lanes lanes are full".to_owned()]));
    client.close().await;
    wait_until(PATIENCE, "ready again", ready, |(status, _)| *status == 200).await;
    proxy.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_where_its_admin_port_is_and_cannot_start_without_it() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--admin-listen", "127.0.0.1:0"], &[]).await;
    let line = proxy.program().wait_for_line("admin on ", PATIENCE).await;
    let admin = rig::Admin::at(line.strip_prefix("admin on ").expect("alone on its line").parse().expect("an address"));
    wait_until(PATIENCE, "ready", async || admin.ready().await, |(status, _)| *status == 200).await;
    let counts = admin.counts().await;
    assert!(counts.value("process_resident_memory_bytes") > 1e6);
    assert!(counts.value("process_open_fds") < counts.value("process_max_fds"));

    let taken = admin.addr().to_string();
    let arguments = ["--listen", "127.0.0.1:0", "--admin-listen", &taken];
    let mut second = Program::start("auth-proxy", &arguments, &[("JWT_SECRET", tokens::SECRET)]);
    assert_eq!(second.wait(PATIENCE).await.code(), Some(1));
    let said = second.stderr();
    assert!(said.len() == 1 && said[0].contains(&taken) && said[0].contains("--admin-listen"), "{said:?}");
    assert!(!second.stdout().iter().any(|line| line.contains(" on 127.0.0.1")), "{:?}", second.stdout());

    proxy.program().signal(Signal::SIGTERM);
    assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));
}

/// A request that never ends takes nothing from the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_holds_up_no_other() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, LATE_PONGS);
    let admin = proxy.admin();
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(admin.addr()).await.expect("it listens"));
    }
    let answered = rig::within(Duration::from_secs(5), "an answer", admin.get("/healthz")).await;
    assert!(answered.is_complete() && answered.header("connection") == Some("close"), "{answered:?}");
    drop(silent);
    proxy.stop().await;
}
