//! The rules at work: some proxies, one mailbox, and a network that delays and loses what it likes.

use proptest::prelude::*;

use super::*;

const PROXIES: usize = 3;
/// Between sessions that began within a question and its answer the clocks may decide, in steps.
const BOUND: u64 = 10 * CONFIRM_WITHIN.as_secs();

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Declare,
    /// A new upgrade that waits, without a consumer.
    Waits,
    Consume,
    Look,
    Subscribed,
    /// After an outage.
    ConsumeAgain,
    LookAgain,
    /// Subscribed again and not alone.
    Contends,
}

struct Session {
    party: Party,
    phase: Phase,
    consumes: bool,
    since: u64,
}

/// Steps are a tenth of a second.
#[derive(Default)]
struct World {
    now: u64,
    sessions: [Option<Session>; PROXIES],
    wire: Vec<(usize, usize, Said)>,
    /// How far each proxy's clock is ahead.
    skews: [u64; PROXIES],
    upgrades: u64,
    refused: Vec<usize>,
}

fn id(proxy: usize) -> ProxyId {
    ProxyId(proxy as u64)
}

impl World {
    fn consumers(&self) -> u32 {
        self.sessions.iter().flatten().map(|session| u32::from(session.consumes)).sum()
    }

    fn age(&self, proxy: usize) -> Duration {
        let since = self.sessions[proxy].as_ref().map_or(self.now, |session| session.since);
        Duration::from_millis(100 * (self.now - since))
    }

    fn say(&mut self, from: usize, said: Said) {
        self.wire.extend((0..PROXIES).filter(|to| *to != from).map(|to| (from, to, said)));
    }

    fn notice(&mut self, proxy: usize) {
        let age = self.age(proxy);
        if let Some(session) = &mut self.sessions[proxy] {
            let claimant = session.party.claimant(age);
            self.say(proxy, Said::Notice { claimant });
        }
    }

    /// Within a proxy the newest wins.
    fn upgrade(&mut self, proxy: usize) {
        self.upgrades += 1;
        let party = Party::new(Order::new(self.now + self.skews[proxy], self.upgrades));
        self.sessions[proxy] = Some(Session { party, phase: Phase::Declare, consumes: false, since: self.now });
    }

    fn outage(&mut self, proxy: usize) {
        let established = |session: &&mut Session| !session.party.is_fresh();
        if let Some(session) = self.sessions[proxy].as_mut().filter(established) {
            session.party.stop_waiting();
            (session.consumes, session.phase) = (false, Phase::ConsumeAgain);
        }
    }

    fn step(&mut self, proxy: usize) {
        let all = self.consumers();
        let Some(session) = &mut self.sessions[proxy] else { return };
        let others = all - u32::from(session.consumes);
        session.phase = match session.phase {
            Phase::Declare | Phase::Look | Phase::LookAgain if others > 0 => {
                session.party.wait();
                // Who subscribes again stays parked.
                session.consumes &= !session.party.is_fresh();
                if session.party.is_fresh() { Phase::Waits } else { Phase::Contends }
            }
            Phase::Waits if session.party.saw(others) => {
                session.party.stop_waiting();
                Phase::Declare
            }
            Phase::Contends if others == 0 => {
                session.party.stop_waiting();
                Phase::Subscribed
            }
            Phase::Declare => Phase::Consume,
            Phase::Consume | Phase::ConsumeAgain => {
                session.consumes = true;
                if session.phase == Phase::Consume { Phase::Look } else { Phase::LookAgain }
            }
            Phase::Look | Phase::LookAgain => {
                session.party.establish();
                Phase::Subscribed
            }
            same => same,
        };
        if matches!(session.phase, Phase::Waits | Phase::Contends) {
            self.notice(proxy);
        }
    }

    /// What one proxy says to another arrives in order, if at all.
    fn deliver(&mut self, at: usize) {
        if self.wire.is_empty() {
            return;
        }
        let (from, to, _) = self.wire[at % self.wire.len()];
        let first = self.wire.iter().position(|sent| (sent.0, sent.1) == (from, to)).unwrap();
        let (.., said) = self.wire.remove(first);
        let (age, nonce) = (self.age(to), self.now);
        let Some(session) = &mut self.sessions[to] else { return };
        match session.party.hear(id(to), id(from), &said, age, nonce) {
            Reaction::Nothing => {}
            Reaction::Say(answer) => self.say(to, answer),
            Reaction::End => {
                if let (Some(winner), Some(loser)) = (&self.sessions[from], &self.sessions[to]) {
                    let relic = !loser.party.is_fresh() && winner.since + BOUND < loser.since;
                    assert!(!relic, "{from} began before {to}, and ended it");
                }
                self.end(to);
                self.say(to, Said::Gone);
            }
            Reaction::Lose => self.end(to),
            Reaction::Look => self.step(to),
        }
    }

    /// An upgrade hears 503 and tries again later; a session hears that it is replaced, and stays away.
    fn end(&mut self, proxy: usize) {
        let refused = self.sessions[proxy].take().is_some_and(|session| session.party.is_fresh());
        self.refused.extend(refused.then_some(proxy));
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            for proxy in 0..PROXIES {
                self.step(proxy);
            }
            for _ in 0..self.wire.len() {
                self.deliver(0);
            }
            self.now += 1;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn in_the_end_one_session_has_the_mailbox(
        acts in proptest::collection::vec((0..10u8, any::<usize>()), 1..150),
        skews in any::<[u8; PROXIES]>(),
    ) {
        let mut world = World { skews: skews.map(u64::from), ..World::default() };
        for (act, which) in acts {
            world.now += 1;
            match act {
                0 => world.upgrade(which % PROXIES),
                1 => world.outage(which % PROXIES),
                2 if !world.wire.is_empty() => drop(world.wire.remove(which % world.wire.len())),
                3..=6 => world.step(which % PROXIES),
                _ => world.deliver(which),
            }
        }
        world.settle();
        if let (true, Some(proxy)) = (world.sessions.iter().all(Option::is_none), world.refused.pop()) {
            world.upgrade(proxy);
            world.settle();
        }
        let phases: Vec<_> = world.sessions.iter().flatten().map(|session| session.phase).collect();
        let expected = if world.upgrades == 0 { vec![] } else { vec![Phase::Subscribed] };
        prop_assert_eq!(phases, expected);
        prop_assert_eq!(world.consumers(), u32::from(world.upgrades > 0));
    }
}
