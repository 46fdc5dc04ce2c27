//! Report A03: while the broker blocks publishers, they say so, hold their window, lose nothing, and can be stopped.

use std::time::Duration;

use nix::sys::signal::Signal;
use rig::{Node, PATIENCE, Program, Vhost, wait_until};

use super::{mailboxes, more, nothing_is_missing, waiting};
use crate::stopping::numbers;

const WINDOW: u64 = 200;
/// What a reader of the log waits for the reason of a standstill.
const SAID_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
pub(crate) enum Alarm {
    Memory,
    Disk,
}

impl Alarm {
    pub(crate) async fn on(self, node: &Node) {
        node.eval(match self {
            Self::Memory => "vm_memory_monitor:set_vm_memory_high_watermark({absolute, 1000000}).",
            Self::Disk => "rabbit_disk_monitor:set_disk_free_limit(900000000000000).",
        })
        .await;
    }

    pub(crate) async fn off(self, node: &Node) {
        node.eval(match self {
            Self::Memory => "vm_memory_monitor:set_vm_memory_high_watermark(0.9).",
            Self::Disk => "rabbit_disk_monitor:set_disk_free_limit(1000000).",
        })
        .await;
    }
}

/// A load run at a node of its own, in full swing.
async fn running(options: &[&str]) -> (Vhost, Program) {
    let node = Node::private().await;
    let vhost = mailboxes(&node, 101).await;
    let window = WINDOW.to_string();
    let words = [&["201", "201", "101", "101", "--interval", "0", "--window", &window], options].concat();
    let producers = Program::producers(&vhost, &words);
    more(&vhost, 1_000).await;
    (vhost, producers)
}

/// Nothing arrives any more.
async fn standstill(vhost: &Vhost) -> u64 {
    let mut before = 0;
    let still = |now: &u64| std::mem::replace(&mut before, *now) == *now;
    wait_until(PATIENCE, "nothing is sent any more", async || waiting(vhost).await, still).await
}

async fn resident_kib(producers: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", producers.pid())).expect("the process runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a resident size");
    line.split_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number of KiB")
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_an_alarm_is_said_held_out_and_nothing_is_lost_or_repeated() {
    // An alarm lasts longer than any confirm may take.
    let (vhost, mut producers) = running(&["--confirm-timeout", "2", "--heartbeat", "1"]).await;
    for (round, alarm) in [(1, Alarm::Memory), (2, Alarm::Disk)] {
        alarm.on(vhost.node()).await;
        producers.wait_for_lines("the broker blocks publishing", round, SAID_WITHIN).await;
        let (sent, resident) = (standstill(&vhost).await, resident_kib(&producers).await);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(waiting(&vhost).await, sent, "something was sent under an alarm");
        assert!(resident_kib(&producers).await < resident + 20 * 1024, "memory grows under an alarm");
        alarm.off(vhost.node()).await;
        producers.wait_for_lines("the broker accepts messages again", round, SAID_WITHIN).await;
        more(&vhost, 1_000).await;
    }
    producers.signal(Signal::SIGTERM);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
    let last = producers.stdout().pop().expect("last words");
    let [sent, confirmed, nacked, returned, unconfirmed, republished] = numbers(&last);
    assert_eq!((sent, republished), (confirmed, 0), "{last}");
    let ended = broker::publisher::Tally { confirmed, nacked, returned, unconfirmed, republished };
    nothing_is_missing(&vhost, &["consumer101"], 1, producers::Totals { sent, ended }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_a_connection_cut_during_an_alarm_is_made_good_after_it() {
    let (vhost, mut producers) = running(&[]).await;
    Alarm::Memory.on(vhost.node()).await;
    producers.wait_for_line("the broker blocks publishing", SAID_WITHIN).await;
    vhost.close_connections("maintenance").await;
    producers.wait_for_lines("the broker blocks publishing", 2, PATIENCE).await;
    Alarm::Memory.off(vhost.node()).await;
    more(&vhost, 1_000).await;
    producers.signal(Signal::SIGTERM);
    assert_eq!(producers.wait(PATIENCE).await.code(), Some(0), "{:#?}", producers.stdout());
    let last = producers.stdout().pop().expect("last words");
    let [sent, confirmed, nacked, returned, unconfirmed, republished] = numbers(&last);
    let ended = broker::publisher::Tally { confirmed, nacked, returned, unconfirmed, republished };
    nothing_is_missing(&vhost, &["consumer101"], 1, producers::Totals { sent, ended }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_producers_stop_in_time_under_an_alarm_and_their_totals_are_exact() {
    let (vhost, mut producers) = running(&[]).await;
    Alarm::Memory.on(vhost.node()).await;
    producers.wait_for_line("the broker blocks publishing", SAID_WITHIN).await;
    let sent_before = standstill(&vhost).await;
    producers.signal(Signal::SIGTERM);
    let code = producers.wait(Duration::from_secs(10)).await.code();
    let last = producers.stdout().pop().expect("last words");
    let [sent, confirmed, _, _, unconfirmed, _] = numbers(&last);
    assert_eq!((sent, code), (confirmed + unconfirmed, Some(i32::from(unconfirmed > 0))), "{last}");
    assert!(unconfirmed <= WINDOW && confirmed <= sent_before && sent_before <= sent, "{sent_before}: {last}");
}
