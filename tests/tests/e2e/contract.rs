//! The contract's example: two producers, three consumers, two instances each.

use std::collections::HashSet;
use std::time::Duration;

use nix::sys::signal::Signal;
use protocol::load::Hello;
use rig::{Client, Dial, Node, PATIENCE, Program, Proxy, ProxyProcess, Vhost, wait_until};
use service::shutdown::Shutdown;

const CONSUMERS: [u64; 3] = [101, 102, 103];
const INSTANCES: [u64; 2] = [1, 2];
const PRODUCERS: [u64; 2] = [201, 202];
const ROUNDS: usize = 20;

/// What stands after the timestamp and the level.
fn message(line: &str) -> &str {
    line.split_once(" INFO ").map_or(line, |(_, message)| message)
}

/// The lines that begin so, as they stand.
fn messages<'a>(lines: &'a [String], beginning: &str) -> Vec<&'a str> {
    lines.iter().map(|line| message(line)).filter(|message| message.starts_with(beginning)).collect()
}

/// The names of this run's producers, `producer201.20902`, told by their own lines.
fn names(producers: &[String]) -> Vec<String> {
    let name = |id: u64| {
        let line =
            producers.iter().find(|line| line.contains(&format!("[producer{id}."))).expect("each producer sends");
        line.split_once('[').unwrap().1.split_once(" says").unwrap().0.to_owned()
    };
    PRODUCERS.map(name).to_vec()
}

/// Every line that is expected of each producer's messages, in order.
fn expected(producers: &[String], line: impl Fn(&str) -> String) -> Vec<Vec<String>> {
    let hellos = |name: &String| (1..=ROUNDS).map(|number| line(&format!("{name} says Hello {number}"))).collect();
    producers.iter().map(hellos).collect()
}

/// Lines of several producers, apart again.
fn by_producer<'a>(lines: &[&'a str], producers: &[String]) -> Vec<Vec<&'a str>> {
    let of = |name: &String| lines.iter().filter(|line| line.contains(name.as_str())).copied().collect();
    producers.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_programs_print_what_the_contract_says() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut proxy = ProxyProcess::start(&vhost, &["--log-messages"], &[]).await;
    let mut consumers = Program::consumers(proxy.addr(), &["101", "103", "2"]);
    wait_until(PATIENCE, "six consumers", async || vhost.consumers().await, |all| all.len() == 6).await;
    let arguments = ["201", "202", "101", "103", "--interval", "50ms", "--count", &ROUNDS.to_string()];
    let mut producers = Program::producers(&vhost, &arguments);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0));
    consumers.wait_for_lines("Received for", PRODUCERS.len() * ROUNDS, PATIENCE).await;
    consumers.signal(Signal::SIGINT);
    assert_eq!(consumers.wait(PATIENCE).await.code(), Some(0));
    proxy.program().signal(Signal::SIGTERM);
    assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));

    let printed = producers.stdout();
    let names = names(&printed);
    let sending = expected(&names, |hello| format!("Sending to (consumer101 to consumer103): [{hello}]"));
    assert_eq!(by_producer(&messages(&printed, "Sending"), &names), sending);
    let rounds = PRODUCERS.len() * ROUNDS;
    let (confirming, ok) = (messages(&printed, "Confirming"), messages(&printed, "OK"));
    assert_eq!((confirming, ok), (vec!["Confirming"; rounds], vec!["OK"; rounds]));
    let sent = PRODUCERS.len() * ROUNDS * CONSUMERS.len();
    let totals = format!("Totals: sent {sent}, confirmed {sent}, nacked 0, returned 0, unconfirmed 0, republished 0");
    assert_eq!(printed.last().map(|line| message(line)), Some(totals.as_str()));

    let printed = consumers.stdout();
    let received = expected(&names, |hello| format!("Received for (consumer101 to consumer103)*2: 6*[{hello}]"));
    assert_eq!(by_producer(&messages(&printed, "Received"), &names), received);
    let flawless = "missing 0, duplicated 0, out of order 0, redelivered 0, republished 0";
    let totals = format!("Totals: received {}, {flawless}", sent * 2);
    assert_eq!(printed.last().map(|line| message(line)), Some(totals.as_str()));

    let printed = proxy.program().stdout();
    for (consumer, instance) in CONSUMERS.iter().flat_map(|consumer| INSTANCES.map(|instance| (consumer, instance))) {
        let beginning = format!("AuthProxy 1: For consumer.consumer{consumer}.{instance}: Forwarding ");
        let forwarding = expected(&names, |hello| format!("{beginning}[{hello}]"));
        assert_eq!(by_producer(&messages(&printed, &beginning), &names), forwarding);
    }
}

/// All that one instance gets: every message of every producer once, in order per producer.
async fn check_instance(mut client: Client) {
    let mut seen: Vec<Hello> = Vec::new();
    while seen.len() < PRODUCERS.len() * ROUNDS {
        let text = client.text().await;
        seen.push(Hello::parse(text.as_bytes()).unwrap_or_else(|| panic!("no hello: {text}")));
    }
    let producers: HashSet<&String> = seen.iter().map(|hello| &hello.producer).collect();
    assert_eq!(producers.len(), PRODUCERS.len());
    for producer in producers {
        let numbers: Vec<u64> = seen.iter().filter(|h| &h.producer == producer).map(|h| h.number).collect();
        assert_eq!(numbers, (1..=ROUNDS as u64).collect::<Vec<_>>(), "{producer}");
    }
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_instance_gets_every_message_in_order_and_once() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let mut clients = Vec::new();
    for consumer in CONSUMERS {
        for instance in INSTANCES {
            let dial = Dial::to(proxy.addr()).consumer(&format!("consumer{consumer}")).instance(&instance.to_string());
            clients.push(dial.connect().await);
        }
    }
    let url = vhost.amqp_url("producer");
    let rounds = ROUNDS.to_string();
    let words = ["producers", "201", "202", "101", "103", "--amqp-url", &url, "--interval", "20ms", "--count", &rounds];
    let args: producers::Args = service::cli::try_parse_from(producers::args::ENV_PREFIX, words).unwrap();
    let config = producers::Config::try_from(args).unwrap();
    let run = producers::run(config, Shutdown::new());
    let totals = rig::within(Duration::from_secs(60), "the end of the producers", run).await.unwrap();
    assert!(totals.is_all_confirmed(), "{totals}");
    futures::future::join_all(clients.into_iter().map(check_instance)).await;
    let summary = proxy.stop().await;
    assert_eq!((summary.sessions, summary.delivered), (6, totals.sent * 2));
}
