//! All producers, from the first connect to the totals.

use std::sync::Arc;
use std::time::Duration;

use broker::link::{Link, link};
use broker::topology::DIRECT;
use service::shutdown::Shutdown;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::Config;
use crate::producer::{Producer, Shared};
use crate::totals::{Counters, Totals};

/// Producers on one connection. The broker's default limit is 2,047 channels.
const PRODUCERS_PER_LINK: u64 = 1_000;

/// How often a load run says how far it is.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Why a run ended without totals.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A fault of this program.
    #[error("a producer ended by a fault of this program: {0}")]
    Panicked(#[from] JoinError),
}

/// Runs all producers until their count is reached or `shutdown` begins, and prints the totals as the last line.
///
/// # Errors
/// [`RunError::Panicked`]; a broker that is absent or lost is no error, the run waits for it.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<Totals, RunError> {
    let shared =
        Shared { config: Arc::new(config), counters: Arc::new(Counters::default()), shutdown: shutdown.clone() };
    let stop_links = CancellationToken::new();
    let mut links = JoinSet::new();
    let mut producers = JoinSet::new();
    let mut current: Option<Link> = None;
    for (index, number) in (0u64..).zip(shared.config.producers.clone()) {
        let link = match current.take() {
            Some(link) if index % PRODUCERS_PER_LINK != 0 => link,
            _ => open_link(&shared.config, &mut links, &stop_links),
        };
        current = Some(link.clone());
        producers.spawn(Producer::new(shared.clone(), link, number).run());
    }

    let mut side = JoinSet::new();
    side.spawn(say_progress(shared.clone()));
    if let Some(duration) = shared.config.duration {
        side.spawn(async move {
            sleep(duration).await;
            shutdown.begin();
        });
    }
    all(&mut producers).await?;
    side.shutdown().await;
    stop_links.cancel();
    tokio::select! {
        ended = all(&mut links) => ended?,
        () = shared.shutdown.forced() => links.shutdown().await,
    }
    let totals = shared.counters.get();
    info!("Totals: {totals}");
    Ok(totals)
}

/// Waits for all tasks; a panic in one of them ends the run.
async fn all(tasks: &mut JoinSet<()>) -> Result<(), JoinError> {
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}

fn open_link(config: &Config, links: &mut JoinSet<()>, stop: &CancellationToken) -> Link {
    let (link, driver) = link(config.endpoints.clone().into(), config.connection.clone(), &[DIRECT]);
    links.spawn(driver.run(stop.clone()));
    link
}

/// A line every few seconds of a load run; rounds speak for themselves.
async fn say_progress(shared: Shared) {
    if shared.config.interval.is_some() {
        return;
    }
    let mut ticks = interval_at(Instant::now() + PROGRESS_PERIOD, PROGRESS_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut before = (shared.counters.get(), Instant::now());
    loop {
        ticks.tick().await;
        let now = (shared.counters.get(), Instant::now());
        let confirmed = now.0.ended.confirmed - before.0.ended.confirmed;
        let seconds = now.1.duration_since(before.1).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for a reader")]
        let rate = confirmed as f64 / seconds;
        info!("Progress: {}; {rate:.0} confirmed/s", now.0);
        before = now;
    }
}
