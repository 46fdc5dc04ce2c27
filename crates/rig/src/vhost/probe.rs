//! What is in a vhost now: exact numbers, asked from the processes of the broker themselves.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Vhost;

/// Everything at once.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Snapshot {
    /// Its queues, by name; those on which proxies talk to each other are left out.
    pub queues: Vec<Queue>,
    /// Its AMQP connections.
    pub connections: Vec<Connection>,
    /// Their channels.
    pub channels: Vec<Channel>,
    /// The consumers on these queues.
    pub consumers: Vec<Consumer>,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Messages that wait.
    pub ready: u64,
    /// Messages delivered and not acked.
    pub unacked: u64,
    /// Its consumers.
    pub consumers: u64,
}

/// One AMQP connection.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Connection {
    /// The Erlang process that holds it.
    pub pid: String,
    /// Who logged in.
    pub user: String,
    /// What the client calls it; empty when it says nothing.
    pub name: String,
    /// Its open channels.
    pub channels: u64,
}

/// One AMQP channel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Channel {
    /// The Erlang process that holds it.
    pub pid: String,
    /// The process of its connection.
    pub connection: String,
    /// Its number there.
    pub number: u64,
    /// Who logged in.
    pub user: String,
    /// Its consumers of mailboxes.
    pub consumers: u64,
    /// Messages delivered on it and not acked.
    pub unacked: u64,
}

/// One consumer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Consumer {
    /// Its queue.
    pub queue: String,
    /// The process of its channel.
    pub channel: String,
    /// Its prefetch limit; 0 is none.
    pub prefetch: u64,
    /// Whether it receives: with `x-single-active-consumer` only one of a queue does.
    pub active: bool,
}

/// `V` is the vhost. What does not look as expected fails instead of being left out of a count.
const PRELUDE: &str = r#"
Pid = fun(P) -> list_to_binary(pid_to_list(P)) end,
Of = fun(Infos) -> [I || I <- Infos, proplists:get_value(vhost, I) =:= V] end,
IsMailbox = fun(#{name := <<"proxy-control-", _/binary>>}) -> false; (_) -> true end,
"#;

const QUEUES: &str = r"
Queues = lists:filter(IsMailbox, lists:map(
    fun([{name, {resource, _, queue, N}}, {messages_ready, R}, {messages_unacknowledged, U}, {consumers, C}]) ->
        #{name => N, ready => R, unacked => U, consumers => C} end,
    rabbit_amqqueue:info_all(V, [name, messages_ready, messages_unacknowledged, consumers]))),
";

const CONNECTIONS: &str = r#"
Name = fun(C) -> case lists:keyfind(<<"connection_name">>, 1, C) of {_, _, N} -> N; false -> <<>> end end,
Connections = lists:map(
    fun([{pid, P}, _, {user, U}, {client_properties, C}, {channels, N}]) ->
        #{pid => Pid(P), user => U, name => Name(C), channels => N} end,
    Of(rabbit_networking:connection_info_all([pid, vhost, user, client_properties, channels]))),
"#;

const CHANNELS: &str = r#"
Talk = [P || C <- rabbit_amqqueue:consumers_all(V), P <- [proplists:get_value(channel_pid, C)],
    {resource, _, queue, <<"proxy-control-", _/binary>>} <- [proplists:get_value(queue_name, C)]],
Mailboxes = fun(P, K) -> max(0, K - length([T || T <- Talk, T =:= P])) end,
Channels = lists:map(
    fun([{pid, P}, _, {connection, C}, {number, N}, {user, U}, {consumer_count, K}, {messages_unacknowledged, A}]) ->
        #{pid => Pid(P), connection => Pid(C), number => N, user => U, consumers => Mailboxes(P, K), unacked => A} end,
    Of(rabbit_channel:info_all([pid, vhost, connection, number, user, consumer_count, messages_unacknowledged]))),
"#;

const CONSUMERS: &str = r"
Consumers = lists:map(fun(C) -> maps:put(queue, maps:get(name, C), maps:remove(name, C)) end, lists:filter(IsMailbox, lists:map(
    fun(#{queue_name := {resource, _, queue, Q}, channel_pid := P, prefetch_count := N, active := A}) ->
        #{name => Q, channel => Pid(P), prefetch => N, active => A} end,
    lists:map(fun maps:from_list/1, rabbit_amqqueue:consumers_all(V))))),
";

impl Vhost {
    /// Everything, from one call. The parts are read one after another, not in one instant.
    ///
    /// # Panics
    /// The node is down.
    pub async fn snapshot(&self) -> Snapshot {
        let parts = [QUEUES, CONNECTIONS, CHANNELS, CONSUMERS].concat();
        self.ask(
            &parts,
            "#{queues => Queues, connections => Connections, channels => Channels, consumers => Consumers}",
        )
        .await
    }

    /// Its queues, by name; those on which proxies talk to each other are left out.
    ///
    /// # Panics
    /// As [`snapshot`](Self::snapshot).
    pub async fn queues(&self) -> Vec<Queue> {
        let mut queues: Vec<Queue> = self.ask(QUEUES, "Queues").await;
        queues.sort_by(|a, b| a.name.cmp(&b.name));
        queues
    }

    /// One queue, `None` when there is none of that name.
    ///
    /// # Panics
    /// As [`snapshot`](Self::snapshot).
    pub async fn queue(&self, name: &str) -> Option<Queue> {
        self.queues().await.into_iter().find(|queue| queue.name == name)
    }

    /// Its AMQP connections.
    ///
    /// # Panics
    /// As [`snapshot`](Self::snapshot).
    pub async fn connections(&self) -> Vec<Connection> {
        self.ask(CONNECTIONS, "Connections").await
    }

    /// The channels of its connections.
    ///
    /// # Panics
    /// As [`snapshot`](Self::snapshot).
    pub async fn channels(&self) -> Vec<Channel> {
        self.ask(CHANNELS, "Channels").await
    }

    /// The consumers on these queues.
    ///
    /// # Panics
    /// As [`snapshot`](Self::snapshot).
    pub async fn consumers(&self) -> Vec<Consumer> {
        self.ask(CONSUMERS, "Consumers").await
    }

    async fn ask<T: DeserializeOwned>(&self, parts: &str, result: &str) -> T {
        let answer = self.node().eval(&format!("{}{PRELUDE}{parts}rabbit_json:encode({result}).", self.erlang())).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("the broker's answer: {error}: {answer}"))
    }

    /// The beginning of an expression that speaks of this vhost as `V`.
    pub(super) fn erlang(&self) -> String {
        let bytes: Vec<String> = self.name().bytes().map(|byte| byte.to_string()).collect();
        format!("V = <<{}>>,", bytes.join(","))
    }
}
