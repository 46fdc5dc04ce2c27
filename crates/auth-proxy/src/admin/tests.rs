use axum::{body::Body, http::Request};
use std::sync::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tower::ServiceExt;

use super::{ready::Standing, *};
use crate::{
    metrics::{Meter, tests as of_metrics},
    outbox::Dialect,
};

const LONG: Duration = Duration::from_secs(60);

fn admin(standing: Arc<Mutex<Standing>>) -> Arc<Admin> {
    let readiness = Readiness::new(move || standing.lock().unwrap().clone());
    Admin::new("1".to_owned(), of_metrics::metrics(), readiness)
}

fn ready() -> Arc<Mutex<Standing>> {
    Arc::new(Mutex::new(Standing { has_head: true, has_upgrade: true, has_lane: true, ..Standing::default() }))
}

async fn ask(admin: &Arc<Admin>, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
    let response = router(admin.clone()).oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
}

async fn get_page(admin: &Arc<Admin>, path: &str) -> (StatusCode, String) {
    let (status, headers, body) = ask(admin, Request::get(path).body(Body::empty()).unwrap()).await;
    assert_eq!(headers[CACHE_CONTROL], "no-store", "{path}");
    (status, body)
}

#[tokio::test]
async fn readiness_names_each_reason_and_health_does_not_mind() {
    let standing = ready();
    let admin = admin(standing.clone());
    assert_eq!(get_page(&admin, "/readyz").await, (StatusCode::OK, "ready\n".to_owned()));
    *standing.lock().unwrap() = Standing { draining: true, has_head: true, has_upgrade: true, ..Standing::default() };
    let lines = "draining: this proxy is shutting down\nlimit: --max-lanes lanes are full\n";
    assert_eq!(get_page(&admin, "/readyz").await, (StatusCode::SERVICE_UNAVAILABLE, lines.to_owned()));
    assert_eq!(get_page(&admin, "/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    // The first one is what Prometheus 2.55 sends, shortened by the formats that are not text.
    let accepted = [
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", true),
        ("application/openmetrics-text", true),
        ("text/plain, application/openmetrics-text;q=0.5", false),
        ("application/openmetrics-text;q=0", false),
        ("text/plain;version=0.0.4", false),
        ("*/*", false),
        ("", false),
    ];
    let admin = admin(ready());
    for (accept, open) in accepted {
        let request = Request::get("/metrics").header(ACCEPT, accept).body(Body::empty()).unwrap();
        let (status, headers, body) = ask(&admin, request).await;
        let kind = if open { OPEN_METRICS } else { PROMETHEUS };
        assert_eq!((status, &headers[CONTENT_TYPE]), (StatusCode::OK, &kind), "{accept}");
        assert_eq!(body.ends_with("# EOF\n"), open, "{accept}");
    }
}

#[tokio::test]
async fn other_paths_and_methods_have_their_status() {
    let admin = admin(ready());
    let status = async |request: Request<Body>| ask(&admin, request).await.0;
    assert_eq!(status(Request::get("/nothing").body(Body::empty()).unwrap()).await, StatusCode::NOT_FOUND);
    let post = Request::post("/stats").body(Body::empty()).unwrap();
    assert_eq!(status(post).await, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(status(Request::head("/metrics").body(Body::empty()).unwrap()).await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn stats_show_rates_latencies_and_who_is_slow() {
    let admin = admin(ready());
    let slow = Meter::new(&admin.metrics, of_metrics::member("consumer.slow.1", Dialect::V1));
    let _quick = Meter::new(&admin.metrics, of_metrics::member("consumer.quick.1", Dialect::V1));
    let start = Instant::now();
    // Before the minute that is shown.
    slow.delivered(2, 200);
    slow.acked([start], 1, start + Duration::from_millis(5));
    admin.rates.note(start, admin.metrics.totals());
    slow.delivered(40, 4_000);
    slow.acked([start], 1, start + Duration::from_millis(20));
    slow.holds(7, Some(start));
    tokio::time::advance(Duration::from_secs(4)).await;
    let (status, page) = get_page(&admin, "/stats").await;
    assert_eq!(status, StatusCode::OK);
    let words = |first: &str| -> Vec<String> {
        let line = page.lines().find(|line| line.trim_start().starts_with(first));
        let line = line.unwrap_or_else(|| panic!("no line {first:?} in\n{page}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words("delivered "), ["delivered", "10.0", "10.0", "10.0", "42"], "40 within 4 s");
    assert_eq!(words("<= 10 ms"), ["<=", "10", "ms", "-", "-", "0.0", "%"]);
    assert_eq!(words("<= 25 ms"), ["<=", "25", "ms", "-", "-", "100.0", "%"]);
    assert_eq!(words("sessions "), ["sessions", "raw", "0", "v1", "2"]);
    assert_eq!(words("declarations")[..2], ["declarations", "DOWN"]);
    assert_eq!(words("other proxies"), ["other", "proxies", "listening", "ignored", "5"]);
    assert_eq!(words("frames "), ["frames", "unreadable", "6"]);
    assert!(page.lines().any(|line| line.ends_with("consumer.slow.1") && line.contains("7 of 16")), "{page}");
    assert!(!page.contains("quick"), "who owes nothing is not slow:\n{page}");
}

/// A server on a free port, and where that is.
async fn serving() -> (std::net::SocketAddr, JoinSet<Infallible>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(serve(Some(listener), admin(ready())));
    (address, server)
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    timeout(LONG, stream.read_to_string(&mut text)).await.expect("an end").unwrap();
    text
}

#[tokio::test]
async fn a_connection_serves_one_request_and_ends() {
    let (address, _server) = serving().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request.repeat(2).as_bytes()).await.unwrap();
    let text = answer(&mut stream).await;
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 1, "{text}");
    assert!(text.to_lowercase().contains("\r\nconnection: close\r\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn those_who_say_nothing_make_room_for_others() {
    let (address, _server) = serving().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let start = Instant::now();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let text = answer(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    let waited = start.elapsed();
    assert!(waited >= HEAD_TIMEOUT, "there was a place for it at once: {waited:?}");
    assert!(waited < CONNECTION_TIMEOUT, "only the end of a whole connection made room: {waited:?}");
    for stream in &mut silent {
        answer(stream).await;
    }
}
