//! Sessions share a lane, and none notices how another one ends.

use std::time::Duration;

use auth_proxy::args::Args;
use rig::{Client, Dial, Node, PATIENCE, Proxy, Received, Vhost, tokens, wait_until};
use tokio::task::JoinSet;

use crate::queue;

const OTHERS: usize = 50;
const LEAVER: &str = "leaver";
/// More than the kernel takes from a proxy for a client that does not read.
const LARGE: usize = 256 * 1024;

/// Fifty sessions that stream, each to its own task, until they have seen the message `last`.
struct Others {
    tasks: JoinSet<Vec<String>>,
}

impl Others {
    async fn connect(proxy: &Proxy) -> Self {
        let mut tasks = JoinSet::new();
        for number in 0..OTHERS {
            let mut client = Dial::to(proxy.addr()).consumer(&format!("other{number}")).connect().await;
            tasks.spawn(async move {
                let mut seen = Vec::new();
                loop {
                    let text = client.text().await;
                    let last = text == "last";
                    seen.push(text);
                    if last {
                        return seen;
                    }
                }
            });
        }
        Self { tasks }
    }

    /// Publishes to all of them until `stop`, then `last`; each must have everything once and in order.
    async fn check(self, vhost: &Vhost, happens: impl Future<Output = ()>) {
        let publisher = vhost.publisher().await;
        let mut sent = Vec::new();
        let mut happens = std::pin::pin!(happens);
        loop {
            let round = sent.len().to_string();
            let publish = async {
                for number in 0..OTHERS {
                    publisher.publish_all(&format!("other{number}"), [round.as_str()]).await;
                }
            };
            let done = tokio::select! {
                biased;
                () = &mut happens => true,
                () = publish => false,
            };
            if done {
                break;
            }
            sent.push(round);
        }
        // The round that was cut short reached some of them; what counts is that all agree up to it and then end.
        for number in 0..OTHERS {
            publisher.publish_all(&format!("other{number}"), ["last"]).await;
        }
        let cut_short = sent.len().to_string();
        for mut seen in self.tasks.join_all().await {
            assert_eq!(seen.pop().as_deref(), Some("last"));
            if seen.last() == Some(&cut_short) {
                seen.pop();
            }
            assert_eq!(seen, sent, "everything once and in order");
        }
    }
}

/// A client with much in its mailbox that it does not read, and how it ends.
async fn a_session_ends(token_ttl: Duration, end: impl AsyncFnOnce(&Proxy, Client) -> Option<Client>) {
    let node = Node::shared().await;
    let vhost = Vhost::new(&node).await;
    let proxy = Proxy::start(&vhost, &[]);
    let others = Others::connect(&proxy).await;
    let dial = || Dial::to(proxy.addr()).receive_buffer(4096);
    let token = tokens::token_for(LEAVER, token_ttl);
    let leaver = dial().token(&token).connect().await;
    let bodies: Vec<String> = (0..40).map(|number| format!("{number}{}", " ".repeat(LARGE))).collect();
    others
        .check(&vhost, async {
            let publisher = vhost.publisher().await;
            publisher.publish_all(LEAVER, bodies).await;
            let state = async || vhost.queue(&queue(LEAVER)).await.expect("the leaver's queue");
            wait_until(PATIENCE, "a full window", state, |queue| queue.unacked == 16).await;
            let channels = vhost.channels().await;
            let lanes = channels.iter().filter(|channel| channel.consumers > 0).count();
            assert_eq!(lanes, 1, "all on one lane: {channels:?}");

            let successor = end(&proxy, leaver).await;
            let mut successor = match successor {
                Some(successor) => successor,
                None => {
                    let back = "everything back in the queue";
                    wait_until(PATIENCE, back, state, |queue| queue.consumers == 0 && queue.unacked == 0).await;
                    dial().consumer(LEAVER).connect().await
                }
            };
            publisher.publish_all(LEAVER, ["after"]).await;
            let mut numbers = Vec::new();
            loop {
                match successor.receive().await {
                    Received::Text(text) if text == "after" => break,
                    Received::Text(text) => numbers.push(text.trim().parse::<usize>().unwrap()),
                    other => panic!("{other:?}"),
                }
            }
            // The kernel never had the whole of even the first one, so nothing was acked.
            assert_eq!(numbers, (0..40).collect::<Vec<_>>());
        })
        .await;
    proxy.stop().await;
}

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_closes_disturbs_nobody() {
    a_session_ends(LONG, async |_, client| {
        client.close().await;
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_reset_disturbs_nobody() {
    a_session_ends(LONG, async |_, client| {
        client.reset();
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_expires_disturbs_nobody() {
    a_session_ends(Duration::from_secs(5), async |_, client| {
        // It does not read: nothing of the end reaches it.
        std::mem::forget(client.drop_silently());
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_taken_over_disturbs_nobody() {
    a_session_ends(LONG, async |proxy, client| {
        let successor = Dial::to(proxy.addr()).consumer(LEAVER).receive_buffer(4096).connect().await;
        std::mem::forget(client.drop_silently());
        Some(successor)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_disturbs_nobody() {
    a_session_ends(LONG, async |_, client| {
        // What the kernel does with the sockets of a killed process.
        drop(client);
        None
    })
    .await;
}

#[test]
fn the_default_window_is_the_one_that_these_tests_count_with() {
    let args: Args = service::cli::try_parse_from(auth_proxy::args::ENV_PREFIX, ["auth-proxy"]).unwrap();
    assert_eq!(auth_proxy::config::Config::from_args(args).unwrap().window, 16);
}
