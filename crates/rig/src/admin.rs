//! What an operator sees of a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::http::{Answer, exchange};
use crate::wait::{PATIENCE, wait_until};

/// The operator's port of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Admin(SocketAddr);

impl Admin {
    /// The one that listens here.
    pub fn at(address: SocketAddr) -> Admin {
        Admin(address)
    }

    /// Where it listens.
    pub fn addr(self) -> SocketAddr {
        self.0
    }

    /// The answer to a GET.
    ///
    /// # Panics
    /// There is none.
    pub async fn get(self, path: &str) -> Answer {
        exchange(self.0, format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.0), PATIENCE).await
    }

    /// Status and lines of `/readyz`.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    pub async fn ready(self) -> (u16, Vec<String>) {
        let answer = self.get("/readyz").await;
        (answer.status, answer.text().lines().map(str::to_owned).collect())
    }

    /// All counts of `/metrics`.
    ///
    /// # Panics
    /// As [`get`](Self::get), and where the page is no Prometheus text.
    pub async fn counts(self) -> Counts {
        let answer = self.get("/metrics").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        Counts::parse(answer.text())
    }

    /// Waits until a series has this value.
    ///
    /// # Panics
    /// It does not within [`PATIENCE`].
    pub async fn wait_for(self, series: &str, value: f64) {
        let now = async || self.counts().await.value(series);
        wait_until(PATIENCE, &format!("{series} {value}"), now, |now| (now - value).abs() < f64::EPSILON).await;
    }
}

/// The series of a page and their values, named as they stand there: `auth_proxy_sessions{dialect="v1"}`.
#[derive(Clone, Debug)]
pub struct Counts(BTreeMap<String, f64>);

impl Counts {
    fn parse(page: &str) -> Counts {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        let pairs = samples.map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line:?}"));
            (series.to_owned(), value.parse().unwrap_or_else(|_| panic!("no number in {line:?}")))
        });
        Counts(pairs.collect())
    }

    /// The value of a series.
    ///
    /// # Panics
    /// There is none of that name.
    pub fn value(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("{series} is not among {:#?}", self.series()))
    }

    /// The names of all series.
    pub fn series(&self) -> BTreeSet<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}
