//! Two proxies on one vhost, restarted one after the other or killed under load, while a producer goes on and clients come
//! back to the one that is there.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::Signal;
use rig::crowd::{Crowd, Member, Notes, Then};
use rig::{Node, PATIENCE, ProxyProcess, Vhost, wait_until, within};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::queue;

const CLIENTS: usize = 40;
const WINDOW: usize = 16;
const BATCH: usize = 20;

fn names() -> Vec<String> {
    (0..CLIENTS).map(|number| format!("c{number}")).collect()
}

/// A producer that never stops until told to: each message confirmed, `0`, `1`, … to each consumer, some at once so that
/// there is something on its way at any moment.
struct Load {
    run: JoinSet<usize>,
    finish: CancellationToken,
    sent: Arc<AtomicUsize>,
}

impl Load {
    fn start(vhost: &Vhost) -> Load {
        let (finish, sent, mut run) = (CancellationToken::new(), Arc::<AtomicUsize>::default(), JoinSet::new());
        let (vhost, finished, count) = (vhost.clone(), finish.clone(), sent.clone());
        run.spawn(async move {
            let publisher = vhost.publisher().await;
            while !finished.is_cancelled() {
                let sent = count.load(Ordering::Relaxed);
                for name in names() {
                    publisher.publish_all(&name, (sent..sent + BATCH).map(|number| number.to_string())).await;
                }
                count.fetch_add(BATCH, Ordering::Relaxed);
            }
            count.load(Ordering::Relaxed)
        });
        Load { run, finish, sent }
    }

    /// So many more to each have gone out.
    async fn goes_on(&self, more: usize) {
        let target = self.sent.load(Ordering::Relaxed) + more;
        let now = async || self.sent.load(Ordering::Relaxed);
        wait_until(PATIENCE, "the producer goes on", now, |now| *now >= target).await;
    }

    /// How many went to each.
    async fn finish(mut self) -> usize {
        self.finish.cancel();
        let sent = within(PATIENCE, "the end of the producer", self.run.join_next()).await;
        sent.expect("it runs").expect("every message is confirmed")
    }
}

/// A quarter of the clients, with a full window that they do not ack, so that each fault finds something unacked.
struct Held<'a> {
    members: Vec<(&'a Member, usize)>,
}

impl<'a> Held<'a> {
    async fn begin(vhost: &Vhost, crowd: &'a Crowd) -> Held<'a> {
        let members: Vec<_> = crowd.members().iter().step_by(4).collect();
        members.iter().for_each(|member| member.hold());
        let mailboxes: HashSet<String> = members.iter().map(|member| queue(&member.name)).collect();
        let full = async || {
            let queues = vhost.queues().await;
            queues.iter().filter(|q| mailboxes.contains(&q.name) && q.unacked == WINDOW as u64).count()
        };
        wait_until(PATIENCE, "their windows are full", full, |full| *full == mailboxes.len()).await;
        Held { members: members.into_iter().map(|member| (member, member.look(Notes::redelivered))).collect() }
    }

    /// All of what they held comes again, and now they ack it.
    async fn end(self) {
        for (member, before) in self.members {
            let redelivered = async || member.look(Notes::redelivered);
            let what = format!("{} has its window again", member.name);
            wait_until(PATIENCE, &what, redelivered, |now| *now == before + WINDOW).await;
            member.ack_again();
        }
    }
}

/// Nothing is missing, and what came more than once is flagged, and no more than what can have been unacked.
async fn check(vhost: &Vhost, crowd: &Crowd, sent: usize, faults: usize) {
    crowd.until("all have arrived", |notes| notes.distinct() >= sent).await;
    let left = async || vhost.queues().await.iter().map(|queue| queue.ready + queue.unacked).sum::<u64>();
    wait_until(PATIENCE, "all are acked", left, |left| *left == 0).await;
    let expected: HashSet<String> = (0..sent).map(|number| number.to_string()).collect();
    for member in crowd.members() {
        let notes = member.notes();
        let bodies: HashSet<String> = notes.arrivals.iter().map(|arrival| arrival.body.clone()).collect();
        assert!(bodies == expected, "{}: {} of {sent}", member.name, bodies.len());
        assert!(notes.unflagged().is_empty(), "{}: {:?}", member.name, notes.unflagged());
        let again = notes.arrivals.len() - sent;
        assert!(again <= faults * WINDOW && notes.redelivered() <= faults * WINDOW, "{}: {again} again", member.name);
        // New ones are in order, whatever came again between them.
        let new: Vec<usize> =
            notes.arrivals.iter().filter(|a| !a.redelivered).map(|a| a.body.parse().unwrap()).collect();
        assert!(new.is_sorted(), "{}: {new:?}", member.name);
    }
}

const ARGUMENTS: &[&str] = &["--drain-timeout", "5", "--drain-spread", "1"];

async fn at(vhost: &Vhost, address: SocketAddr) -> ProxyProcess {
    ProxyProcess::start(vhost, ARGUMENTS, &[("AUTH_PROXY_LISTEN", &address.to_string())]).await
}

/// Field report A27: a rolling deploy. Everybody is told to go, in order, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a27_a_rolling_restart_under_load_loses_nothing_and_repeats_only_what_was_unacked() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut first = ProxyProcess::start(&vhost, ARGUMENTS, &[]).await;
    let mut second = ProxyProcess::start(&vhost, ARGUMENTS, &[]).await;
    let addresses = [first.addr(), second.addr()];
    let crowd = Crowd::of(&addresses, names(), Then::Returns).await;
    let load = Load::start(&vhost);
    let mut ends = 0;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        for proxy in [&mut first, &mut second] {
            load.goes_on(100).await;
            let held = Held::begin(&vhost, &crowd).await;
            proxy.program().signal(signal);
            assert_eq!(proxy.program().wait(PATIENCE).await.code(), Some(0));
            let last = proxy.program().stdout().pop().expect("last words");
            assert!(last.ends_with("cut off 0, panicked 0"), "{last}");
            ends += 1;
            crowd.until("all are with the other one", |notes| notes.sessions > ends).await;
            held.end().await;
            *proxy = at(&vhost, proxy.addr()).await;
        }
    }
    load.goes_on(100).await;
    let sent = load.finish().await;
    check(&vhost, &crowd, sent, ends).await;
    for member in crowd.members() {
        let notes = member.notes();
        assert_eq!(notes.ends, vec![Some(4002); ends], "{}", member.name);
        assert!(notes.resumed[1..].iter().all(|resumed| *resumed == Some(true)), "{}", member.name);
    }
}

/// As above, without a word.
#[tokio::test(flavor = "multi_thread")]
async fn proxies_killed_under_load_lose_nothing_and_repeat_at_most_a_window_a_session() {
    let vhost = Vhost::new(&Node::shared().await).await;
    let mut first = ProxyProcess::start(&vhost, ARGUMENTS, &[]).await;
    let mut second = ProxyProcess::start(&vhost, ARGUMENTS, &[]).await;
    let crowd = Crowd::of(&[first.addr(), second.addr()], names(), Then::Returns).await;
    let load = Load::start(&vhost);
    let mut kills = 0;
    for _ in 0..2 {
        for proxy in [&mut first, &mut second] {
            load.goes_on(100).await;
            let held = Held::begin(&vhost, &crowd).await;
            proxy.program().signal(Signal::SIGKILL);
            proxy.program().wait(PATIENCE).await;
            kills += 1;
            crowd.until("all are with the other one", |notes| notes.sessions > kills).await;
            held.end().await;
            *proxy = at(&vhost, proxy.addr()).await;
        }
    }
    load.goes_on(100).await;
    let sent = load.finish().await;
    check(&vhost, &crowd, sent, kills).await;
}
