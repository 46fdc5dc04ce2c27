//! All instances together: starts them, prints what they tell, and ends them in time.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use service::shutdown::Shutdown;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::args::CLOSE_TIMEOUT_MAX;
use crate::config::Config;
use crate::dial::Who;
use crate::instance::Instance;
use crate::report::{Report, Totals};
use crate::rounds::Rounds;
use crate::status::{Line, Status};
use crate::world::{Arrivals, Event, Outcome, World};

/// Events that wait to be printed.
const EVENTS: usize = 4_096;

/// How late a line may come.
const TICK: Duration = Duration::from_millis(50);

/// How often a load run says how it goes.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// For the instances to hand in their counts after their goodbyes, or at once when forced.
const GRACE: Duration = Duration::from_secs(1);

/// How long a shutdown may take.
const SHUTDOWN_MAX: Duration = Duration::from_secs(10);
const _: () = assert!(CLOSE_TIMEOUT_MAX.as_secs() + GRACE.as_secs() < SHUTDOWN_MAX.as_secs());

enum Step {
    Event(Event),
    Joined(Result<Outcome, JoinError>),
    Tick,
    LastOneGone,
    OutOfTime,
}

/// The running instances and what is known of them.
pub(crate) struct Fleet {
    world: Arc<World>,
    events: mpsc::Receiver<Event>,
    instances: JoinSet<Outcome>,
    status: Status,
    rounds: Rounds,
    progress: Progress,
    report: Report,
    who: String,
}

impl Fleet {
    /// Starts one task for each instance.
    pub(crate) fn start(config: &Config, shutdown: Shutdown) -> Self {
        let (sender, events) = mpsc::channel(EVENTS);
        let world = Arc::new(World::new(config, sender, shutdown));
        let mut instances = JoinSet::new();
        let all = config
            .consumers
            .clone()
            .flat_map(|consumer| (1..=config.instances).map(move |instance| Who { consumer, instance }));
        for (turn, who) in all.enumerate() {
            let behaviour = config.behaviours.of(turn as u64, config.total());
            instances.spawn(Box::new(Instance::new(Arc::clone(&world), who, turn, behaviour)).run());
        }
        let now = Instant::now();
        Self {
            world,
            events,
            instances,
            status: Status::new(config.total(), now),
            rounds: Rounds::new(config.total(), config.flush_after),
            progress: Progress { said_at: now, load: 0, other: 0 },
            report: Report::new(config.protocol),
            who: config.who(),
        }
    }

    /// Runs until the last instance has ended, or the shutdown has no more time for the rest.
    pub(crate) async fn watch(&mut self, duration: Option<Duration>) {
        let world = Arc::clone(&self.world);
        let mut out_of_time = pin!(out_of_time(&world));
        let mut enough = pin!(sleep(duration.unwrap_or_default()));
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let step = tokio::select! {
                Some(event) = self.events.recv() => Step::Event(event),
                joined = self.instances.join_next() => joined.map_or(Step::LastOneGone, Step::Joined),
                _ = tick.tick() => Step::Tick,
                () = &mut enough, if duration.is_some() && !world.shutdown.is_begun() => {
                    tracing::info!("The duration is over: saying goodbye");
                    world.shutdown.begin();
                    continue;
                }
                () = &mut out_of_time => Step::OutOfTime,
            };
            match step {
                Step::Event(event) => self.on_event(event),
                Step::Joined(Ok(outcome)) => self.on_outcome(&outcome),
                Step::Joined(Err(error)) => {
                    tracing::error!("an instance failed in the program: {error}");
                    self.report.add_lost(1);
                }
                Step::Tick => self.on_tick(),
                Step::LastOneGone => return,
                Step::OutOfTime => return self.abandon().await,
            }
        }
    }

    /// Prints what is left and the report.
    pub(crate) fn finish(mut self) -> Totals {
        while let Ok(event) = self.events.try_recv() {
            self.on_event(event);
        }
        for line in self.status.flush(Instant::now()) {
            print(line);
        }
        for round in self.rounds.flush() {
            tracing::info!("Received for {}: {round}", self.who);
        }
        let totals = self.report.totals();
        for line in self.report.lines(self.world.latencies.lines()) {
            tracing::info!("{line}");
        }
        totals
    }

    fn on_event(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Hello(hello) => {
                if let Some(round) = self.rounds.arrived(hello, now) {
                    tracing::info!("Received for {}: {round}", self.who);
                }
            }
            Event::Connected => {
                if let Some(line) = self.status.on_connected(now) {
                    print(line);
                }
            }
            Event::Noted(note) => self.status.on_noted(&note, now),
            Event::Failed { who, failure, stopped } => {
                if stopped {
                    self.status.on_stopped(&failure, || self.world.dialer.log_name(who), now);
                } else {
                    self.status.on_failed(&failure, now);
                }
            }
            Event::Ended { who, end, stopped } => {
                self.status.on_ended(&end, stopped, now);
                if stopped {
                    self.status.on_stopped(&end, || self.world.dialer.log_name(who), now);
                }
            }
        }
    }

    fn on_outcome(&mut self, outcome: &Outcome) {
        self.report.add(outcome, || self.world.dialer.log_name(outcome.who));
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        for line in self.status.due(now) {
            print(line);
        }
        while let Some(round) = self.rounds.due(now) {
            tracing::info!("Received for {}: {round}", self.who);
        }
        for line in self.progress.due(&self.world.arrivals, &self.status.connected(), now) {
            print(line);
        }
    }

    /// Ends the instances that are left; what they counted goes with them, and the report says so.
    async fn abandon(&mut self) {
        self.instances.abort_all();
        while let Some(joined) = self.instances.join_next().await {
            match joined {
                Ok(outcome) => self.on_outcome(&outcome),
                Err(_) => self.report.add_lost(1),
            }
        }
    }
}

/// Long enough after the shutdown began that every instance had its time for a goodbye; or a moment after
/// it was forced.
async fn out_of_time(world: &World) {
    world.shutdown.begun().await;
    tokio::select! {
        () = sleep(world.close_timeout + GRACE) => {}
        () = async { world.shutdown.forced().await; sleep(GRACE).await } => {}
    }
}

fn print(line: Line) {
    match line {
        Line::Info(text) => tracing::info!("{text}"),
        Line::Warn(text) => tracing::warn!("{text}"),
        Line::Error(text) => tracing::error!("{text}"),
    }
}

/// How a load run goes, and what else arrives.
struct Progress {
    said_at: Instant,
    load: u64,
    other: u64,
}

impl Progress {
    fn due(&mut self, arrivals: &Arrivals, connected: &str, now: Instant) -> Vec<Line> {
        let passed = now.saturating_duration_since(self.said_at);
        if passed < PROGRESS_EVERY {
            return Vec::new();
        }
        let (load, other) = (arrivals.load.load(Ordering::Relaxed), arrivals.other.load(Ordering::Relaxed));
        let mut lines = Vec::new();
        if load > self.load {
            let rate = u128::from(load - self.load) * 1_000 / passed.as_millis().max(1);
            lines.push(Line::Info(format!("Received {load} so far, {rate}/s, {connected} connected")));
        }
        if other > self.other {
            let text = format!("{other} bodies so far are no hello of a producer; they are counted apart");
            lines.push(Line::Warn(text));
        }
        *self = Self { said_at: now, load, other };
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_run_says_its_rate_and_other_bodies_are_mentioned_once() {
        let (arrivals, start) = (Arrivals::default(), Instant::now());
        let mut progress = Progress { said_at: start, load: 0, other: 0 };
        arrivals.load.store(10_000, Ordering::Relaxed);
        arrivals.other.store(3, Ordering::Relaxed);
        assert_eq!(progress.due(&arrivals, "6 of 6", start + PROGRESS_EVERY / 2), []);
        assert_eq!(
            progress.due(&arrivals, "6 of 6", start + PROGRESS_EVERY),
            [
                Line::Info("Received 10000 so far, 2000/s, 6 of 6 connected".to_owned()),
                Line::Warn("3 bodies so far are no hello of a producer; they are counted apart".to_owned()),
            ]
        );
        assert_eq!(progress.due(&arrivals, "6 of 6", start + PROGRESS_EVERY * 2), []);
    }
}
