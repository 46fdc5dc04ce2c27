//! What can go wrong at the broker, done to one vhost and to nobody else.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Channel, Vhost};

/// A delivery tag that no channel has reached.
const UNKNOWN_TAG: &str = "1 bsl 60";

impl Vhost {
    /// Closes its connections as an operator does: each client is told the reason (320, connection forced).
    ///
    /// # Panics
    /// The node is down.
    pub async fn close_connections(&self, reason: &str) {
        let reason = reason.replace(['"', '\\'], "'");
        self.to_each_connection(&format!(r#"rabbit_networking:close_connection(P, "{reason}")"#)).await;
    }

    /// Ends its connections without a word: the TCP connections close and nothing else is said.
    ///
    /// # Panics
    /// The node is down.
    pub async fn cut_connections(&self) {
        self.to_each_connection("exit(P, kill)").await;
    }

    async fn to_each_connection(&self, act: &str) {
        let of = "proplists:get_value(vhost, I) =:= V";
        let all = "I <- rabbit_networking:connection_info_all([pid, vhost])";
        let pid = "P <- [proplists:get_value(pid, I)]";
        self.node().eval(&format!("{}[{act} || {all}, {of}, {pid}], ok.", self.erlang())).await;
    }

    /// Closes one channel with an error, and its connection lives on: 406, as after an ack for a tag that the broker does
    /// not know.
    ///
    /// # Panics
    /// The node is down.
    pub async fn close_channel(&self, channel: &Channel) {
        let ack = format!("{{'basic.ack', {UNKNOWN_TAG}, false}}");
        self.node().eval(&format!(r#"rabbit_channel:do(list_to_pid("{}"), {ack})."#, channel.pid)).await;
    }

    /// Deletes a queue under whoever uses it; returns whether there was one.
    ///
    /// # Panics
    /// The broker refuses.
    pub async fn delete_queue(&self, name: &str) -> bool {
        let (status, answer) = self.api().try_call(Method::DELETE, &["queues", self.name(), name], None).await;
        assert!(status.is_success() || status == StatusCode::NOT_FOUND, "delete {name}: {status}: {answer}");
        status.is_success()
    }

    /// Declares a durable queue as the administrator, with these arguments: `json!({})` for none, which is not what the
    /// proxy declares.
    ///
    /// # Panics
    /// The broker refuses.
    pub async fn declare_queue(&self, name: &str, arguments: Value) {
        let queue = json!({"durable": true, "auto_delete": false, "arguments": arguments});
        self.api().call(Method::PUT, &["queues", self.name(), name], Some(&queue)).await;
    }

    /// Binds a queue to `exchange.direct` as the administrator.
    ///
    /// # Panics
    /// The broker refuses.
    pub async fn bind_queue(&self, name: &str, key: &str) {
        let path = ["bindings", self.name(), "e", protocol::names::EXCHANGE_DIRECT, "q", name];
        self.api().call(Method::POST, &path, Some(&json!({"routing_key": key}))).await;
    }

    /// Drops what waits in a queue.
    ///
    /// # Panics
    /// The broker refuses.
    pub async fn purge_queue(&self, name: &str) {
        self.api().call(Method::DELETE, &["queues", self.name(), name, "contents"], None).await;
    }
}
