//! Clients that are slow, and clients that are dead: how each ends, with what it did not ack back at once, and what it
//! costs others.
//!
//! Which end a client meets that never reads depends on its bodies. Small ones all fit the kernel's buffers: what is missed
//! is the pong (4004) or the ack (4006), whichever time is over first. Of large ones the first does not fit: the socket
//! takes nothing more (4003), and a ping that stands in line behind it is not held against the client.

mod alive;
mod dead;
mod stalled;

use rig::{Client, Dial, PATIENCE, ProxyProcess, Vhost, wait_until};

use crate::queue;

const KIB: usize = 1024;
const MIB: usize = 1024 * 1024;

/// Longer than any test takes: what is set to it is not what ends a session.
const NEVER: &str = "1h";

fn body(number: usize, bytes: usize) -> String {
    let mut body = format!("message {number} ");
    body.extend(std::iter::repeat_n('.', bytes.saturating_sub(body.len())));
    body
}

fn number_of(body: &[u8]) -> usize {
    let text = std::str::from_utf8(body).expect("bodies are text");
    text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text:.40}"))
}

async fn welcomed(dial: &Dial) -> Client {
    let mut client = dial.connect().await;
    client.welcome().await;
    client
}

/// Everything is ready in its mailbox, and nobody holds it.
async fn all_back(vhost: &Vhost, consumer: &str, messages: usize) {
    let state = async || vhost.queue(&queue(consumer)).await.map(|q| (q.ready, q.unacked, q.consumers));
    let what = format!("all {messages} of {consumer} are back");
    wait_until(PATIENCE, &what, state, |state| *state == Some((messages as u64, 0, 0))).await;
}

/// Reads and acks these messages, in order; those that were delivered before are flagged, and come before the others.
async fn take_all(client: &mut Client, messages: usize) -> usize {
    let mut redelivered = 0;
    for number in 0..messages {
        let message = client.message().await;
        assert_eq!(number_of(message.body()), number);
        if message.redelivered {
            assert_eq!(redelivered, number, "what was held comes first");
            redelivered += 1;
        }
        client.ack(message.seq).await;
    }
    redelivered
}

/// The log names the end of this client's session.
async fn logged(proxy: &mut ProxyProcess, consumer: &str, code: u16) {
    let line = proxy.program().wait_for_line(&format!("consumer.{consumer}.1 ended: "), PATIENCE).await;
    assert!(line.contains(&format!("ended: {code} ")), "{line}");
}

/// Publishes so many to a consumer; the sizes decide what the kernel takes.
async fn publish(vhost: &Vhost, consumer: &str, messages: usize, bytes: usize) {
    vhost.publisher().await.publish_all(consumer, (0..messages).map(|number| body(number, bytes))).await;
}
