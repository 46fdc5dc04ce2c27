//! Clients that die under load, again and again: what was confirmed to the producer is acked in the end, and what comes
//! twice says so.

use std::collections::{BTreeMap, BTreeSet};

use nix::sys::signal::Signal;
use protocol::v1::{Message, ServerFrame};
use rig::{Client, Dial, Node, PATIENCE, Program, Proxy, Received, Vhost, wait_until};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::control::Control;

const CLIENTS: usize = 20;
const MESSAGES: usize = 400;
const WINDOW: usize = 16;
/// Sent at once to one client: more than its window.
const BATCH: usize = 40;

/// What a client saw of each number: how often, and whether each time but the first was flagged; and what it acked. What it
/// saw and died with does not count.
#[derive(Default)]
struct Seen {
    sessions: usize,
    times: BTreeMap<usize, usize>,
    unflagged: Vec<usize>,
    unacked: Vec<usize>,
    acked: BTreeSet<usize>,
}

impl Seen {
    fn note(&mut self, message: &Message<'_>) {
        let number = std::str::from_utf8(message.body()).unwrap().parse().unwrap();
        self.unacked.push(number);
        let times = self.times.entry(number).or_default();
        *times += 1;
        if *times > 1 && !message.redelivered {
            self.unflagged.push(number);
        }
    }

    async fn ack(&mut self, client: &mut Client, seq: u64) {
        client.ack(seq).await;
        self.acked.extend(self.unacked.drain(..));
    }
}

/// One that dies after some messages and comes back at once; it acks now and then.
async fn mortal(dial: Dial, finish: CancellationToken) -> Seen {
    let mut seen = Seen::default();
    while !finish.is_cancelled() {
        let mut client = dial.connect().await;
        seen.sessions += 1;
        seen.unacked.clear();
        let (mut life, batch) = (rand::random_range(1..120_usize), rand::random_range(1..6));
        while life > 0 {
            let received = tokio::select! {
                received = client.try_receive(PATIENCE) => received,
                () = finish.cancelled() => break,
            };
            let frame = match received {
                Some(Received::Text(text)) => ServerFrame::parse(&text).expect("a frame of v1"),
                other => panic!("{other:?}"),
            };
            let ServerFrame::Message(message) = frame else { continue };
            seen.note(&message);
            if message.seq % batch == 0 || finish.is_cancelled() {
                seen.ack(&mut client, message.seq).await;
            }
            life -= 1;
        }
        match rand::random_range(0..3) {
            0 => client.reset(),
            1 => drop(client),
            _ => client.close().await.map_or((), drop),
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_die_under_load_miss_nothing_and_see_no_copy_that_is_not_flagged() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let control = Control::start(&vhost, proxy.addr()).await;
    let finish = CancellationToken::new();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let name = format!("c{number}");
        let dial = Dial::to(proxy.addr()).consumer(&name).v1();
        // So that its mailbox exists.
        dial.connect().await.close().await;
        let finish = finish.clone();
        clients.spawn(async move { (name, mortal(dial, finish).await) });
    }
    let publisher = vhost.publisher().await;
    for round in 0..MESSAGES / BATCH {
        for client in 0..CLIENTS {
            let numbers = round * BATCH..(round + 1) * BATCH;
            publisher.publish_all(&format!("c{client}"), numbers.map(|number| number.to_string())).await;
        }
    }
    let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
    let few = (CLIENTS * WINDOW) as u64;
    wait_until(PATIENCE, "little is left but what is never acked", left, |left| *left < few).await;
    finish.cancel();
    let seen = clients.join_all().await;
    assert_eq!(seen.len(), CLIENTS);
    for (name, mut seen) in seen {
        assert!(seen.sessions > 1, "{name} never died");
        // One that lives on takes the rest.
        let mut client = Dial::to(proxy.addr()).consumer(&name).v1().connect().await;
        seen.unacked.clear();
        for _ in 0..client.welcome().await.pending {
            let message = client.message().await;
            seen.note(&message);
            seen.ack(&mut client, message.seq).await;
        }
        client.close().await;
        assert!(seen.unflagged.is_empty(), "{name}: {:?}", seen.unflagged);
        assert!(seen.acked.iter().copied().eq(0..MESSAGES), "{name} acked {:?}", seen.acked);
        let again: usize = seen.times.values().map(|times| times - 1).sum();
        assert!(again <= seen.sessions * WINDOW, "{name}: {again} again in {} sessions", seen.sessions);
    }
    wait_until(PATIENCE, "nothing is left", left, |left| *left == 0).await;
    let streamed = control.finish().await.messages;
    let acked = (CLIENTS * MESSAGES) as u64 + streamed;
    assert_eq!(proxy.stop().await.acked, acked, "each was acked once");
}

/// `kill -9` of the process, five times; each message is acked once in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_clients_killed_under_load_misses_nothing() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let proxy = Proxy::start(&vhost, &[]);
    let control = Control::start(&vhost, proxy.addr()).await;
    let words = ["101", "110", "2", "--protocol", "v1"];
    let mut consumers = Program::consumers(proxy.addr(), &words);
    consumers.wait_for_line("Connected 20 of 20", PATIENCE).await;
    let producing = ["201", "202", "101", "110", "--interval", "0", "--persistent", "--count", "400", "--window", "50"];
    let mut producers = Program::producers(&vhost, &producing);
    for _ in 0..5 {
        let unacked = async || vhost.queues().await.iter().map(|queue| queue.unacked).sum::<u64>();
        wait_until(PATIENCE, "messages are on their way", unacked, |unacked| *unacked > 100).await;
        consumers.signal(Signal::SIGKILL);
        consumers.wait(PATIENCE).await;
        consumers = Program::consumers(proxy.addr(), &words);
        consumers.wait_for_line("Connected 20 of 20", PATIENCE).await;
    }
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
    let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
    wait_until(PATIENCE, "all are acked", left, |left| *left == 0).await;
    let streamed = control.finish().await.messages;
    // Two producers, 400 messages, 20 instances.
    assert_eq!(proxy.stop().await.acked, 2 * 400 * 20 + streamed, "each was acked once");
}
