//! May new clients come? Whoever distributes them asks this; what is served already is not touched by the answer.

use std::{fmt, sync::Arc};

use broker::{mailboxes::Mailboxes, vitals::Vitals};
use service::shutdown::Shutdown;

use crate::{accept::Lobby, gateway::Gateway};

/// The connections without which no upgrade succeeds.
const NEEDED: [&str; 2] = ["deliveries", "declarations"];

/// What is looked at.
pub(crate) struct Readiness {
    checks: Box<dyn Fn() -> Standing + Send + Sync>,
}

/// How things stand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) draining: bool,
    /// The connections to the broker that are not there.
    pub(crate) links_down: Vec<&'static str>,
    /// Whether there is a place for one more, at each limit.
    pub(crate) has_head: bool,
    pub(crate) has_upgrade: bool,
    pub(crate) has_lane: bool,
}

/// Why no new clients should come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Draining,
    NoConnection(&'static str),
    HeadsFull,
    UpgradesFull,
    LanesFull,
}

impl Readiness {
    /// Of a running gateway.
    pub(crate) fn of(mailboxes: Mailboxes, gateway: Arc<Gateway>, lobby: Lobby, shutdown: Shutdown) -> Self {
        Self::new(move || Standing {
            draining: shutdown.is_begun(),
            links_down: links_down(&mailboxes.vitals()),
            has_head: lobby.has_room(),
            has_upgrade: gateway.has_room(),
            has_lane: mailboxes.has_room(gateway.default_window()),
        })
    }

    pub(crate) fn new(checks: impl Fn() -> Standing + Send + Sync + 'static) -> Self {
        Self { checks: Box::new(checks) }
    }

    /// Empty when new clients are welcome.
    pub(crate) fn reasons(&self) -> Vec<Reason> {
        (self.checks)().reasons()
    }
}

fn links_down(vitals: &Vitals) -> Vec<&'static str> {
    let down = vitals.links.iter().filter(|link| !link.up && NEEDED.contains(&link.purpose));
    down.map(|link| link.purpose).collect()
}

impl Standing {
    fn reasons(&self) -> Vec<Reason> {
        let Self { draining, links_down, has_head, has_upgrade, has_lane } = self;
        let links = links_down.iter().map(|purpose| Reason::NoConnection(purpose));
        let limits =
            [(has_head, Reason::HeadsFull), (has_upgrade, Reason::UpgradesFull), (has_lane, Reason::LanesFull)];
        let full = limits.into_iter().filter(|(has_place, _)| !**has_place).map(|(_, reason)| reason);
        draining.then_some(Reason::Draining).into_iter().chain(links).chain(full).collect()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Draining => f.write_str("draining: this proxy is shutting down"),
            Self::NoConnection(purpose) => write!(f, "broker: no connection for {purpose}"),
            Self::HeadsFull => f.write_str("limit: --max-heads connections wait for their request head"),
            Self::UpgradesFull => f.write_str("limit: --max-upgrades upgrades are in progress"),
            Self::LanesFull => f.write_str("limit: --max-lanes lanes are full"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use broker::vitals::LinkVitals;

    use super::*;

    const GOOD: Standing =
        Standing { draining: false, links_down: Vec::new(), has_head: true, has_upgrade: true, has_lane: true };

    #[test]
    fn each_condition_has_a_line_of_its_own() {
        assert!(Readiness::new(|| GOOD).reasons().is_empty());
        let bad = Standing { draining: true, links_down: vec!["deliveries", "declarations"], ..Standing::default() };
        let lines: Vec<_> = Readiness::new(move || bad.clone()).reasons().iter().map(Reason::to_string).collect();
        let expected = [
            "draining: this proxy is shutting down",
            "broker: no connection for deliveries",
            "broker: no connection for declarations",
            "limit: --max-heads connections wait for their request head",
            "limit: --max-upgrades upgrades are in progress",
            "limit: --max-lanes lanes are full",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_connection_that_no_upgrade_needs_may_be_down() {
        let link = |purpose, up| LinkVitals { purpose, up, blocked: true, reconnects: 0, outages: Duration::ZERO };
        let links = vec![link("deliveries", true), link("declarations", false), link("control", false)];
        assert_eq!(links_down(&Vitals { links, ..Vitals::default() }), ["declarations"]);
    }

    #[test]
    fn one_full_limit_is_enough() {
        let full = Standing { has_upgrade: false, ..GOOD };
        assert_eq!(Readiness::new(move || full.clone()).reasons(), [Reason::UpgradesFull]);
    }
}
