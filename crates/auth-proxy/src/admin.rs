//! The operator's port: health, readiness, counts.
//!
//! - `ready`: may new clients come?
//! - `rates`: what happened within the last second, ten, sixty.
//! - `stats`: the same as `/metrics`, as a table for people.
//! - [`server`](self): connections, each bounded in time, and at most [`CONNECTIONS_MAX`] of them.

mod rates;
mod ready;
mod stats;

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, HeaderValue, StatusCode,
        header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{debug, error, warn};

use crate::metrics::Metrics;
use rates::Rates;
pub(crate) use ready::Readiness;

/// Connections at a time; others wait in the kernel's backlog. Each is over within [`CONNECTION_TIMEOUT`].
const CONNECTIONS_MAX: usize = 64;
/// For the request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// For a request and its answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// How often the counters are noted for `/stats`.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PROMETHEUS: HeaderValue = HeaderValue::from_static(prometheus_client::encoding::prometheus_text::CONTENT_TYPE);

/// What the port shows.
pub(crate) struct Admin {
    pub(crate) proxy_id: String,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) readiness: Readiness,
    rates: Rates,
}

impl Admin {
    pub(crate) fn new(proxy_id: String, metrics: Arc<Metrics>, readiness: Readiness) -> Arc<Self> {
        Arc::new(Self { proxy_id, metrics, readiness, rates: Rates::default() })
    }
}

/// Serves until it is dropped, which cuts off what is under way. Without a listener nobody asks.
pub(crate) async fn serve(listener: Option<TcpListener>, admin: Arc<Admin>) -> Infallible {
    let Some(listener) = listener else { return std::future::pending().await };
    let router = router(admin.clone());
    let mut connections = JoinSet::new();
    let mut samples = interval(SAMPLE_EVERY);
    samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => drop(connections.spawn(converse(stream, router.clone()))),
                Err(error) => {
                    warn!("the admin port cannot accept a connection: {error}");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(done) = connections.join_next() => report(done),
            _ = samples.tick() => admin.rates.note(Instant::now(), admin.metrics.totals()),
        }
    }
}

/// One request and its answer. No second one on the same connection: one that is kept open takes a place from others.
async fn converse(stream: TcpStream, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).keep_alive(false);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("a connection of the admin port: {error}"),
        Err(_) => debug!("a connection of the admin port took longer than {CONNECTION_TIMEOUT:?}"),
    }
}

fn report(done: Result<(), JoinError>) {
    if let Err(error) = done {
        error!("a request of the admin port panicked: {error}");
    }
}

/// All paths.
fn router(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/stats", get(stats))
        .with_state(admin)
}

/// Alive: the process answers. That it cannot serve clients at the moment is no reason to kill it.
async fn healthz() -> Response {
    page(StatusCode::OK, PLAIN, "ok\n".to_owned())
}

async fn readyz(State(admin): State<Arc<Admin>>) -> Response {
    let reasons = admin.readiness.reasons();
    if reasons.is_empty() {
        return page(StatusCode::OK, PLAIN, "ready\n".to_owned());
    }
    let lines = reasons.iter().map(|reason| format!("{reason}\n"));
    page(StatusCode::SERVICE_UNAVAILABLE, PLAIN, lines.collect())
}

async fn metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    let (kind, text) = if wants_open_metrics(&headers) {
        (OPEN_METRICS, admin.metrics.open_metrics())
    } else {
        (PROMETHEUS, admin.metrics.prometheus_text())
    };
    match text {
        Ok(text) => page(StatusCode::OK, kind, text),
        Err(error) => {
            error!("the metrics cannot be encoded: {error}");
            page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "the metrics cannot be encoded\n".to_owned())
        }
    }
}

async fn stats(State(admin): State<Arc<Admin>>) -> Response {
    page(StatusCode::OK, PLAIN, stats::table(&admin, Instant::now()))
}

fn page(status: StatusCode, kind: HeaderValue, text: String) -> Response {
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    (status, headers, text).into_response()
}

/// Whether OpenMetrics is among what is accepted, and plain text is not liked better (RFC 9110, section 12.5.1).
fn wants_open_metrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted: Vec<_> = accepted.flat_map(|value| value.split(',')).map(liking).collect();
    let best = |kind| accepted.iter().filter(|(of, _)| *of == kind).map(|(_, q)| *q).fold(0.0, f32::max);
    let open_metrics = best("application/openmetrics-text");
    open_metrics > 0.0 && open_metrics >= best("text/plain")
}

/// A media type and its `q`, from 0 to 1.
fn liking(element: &str) -> (&str, f32) {
    let mut parts = element.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let q = parts.find_map(|parameter| parameter.strip_prefix("q="));
    (kind, q.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
}

#[cfg(test)]
mod tests;
