use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;

fn any_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<Vec<u8>>(),
        any::<String>().prop_map(String::into_bytes),
        "[\\x00-\\x20\"\\\\/]{0,40}".prop_map(String::into_bytes),
        // UTF-8 cut anywhere.
        ("[🐢ä\u{d7ff}]{1,10}", any::<prop::sample::Index>()).prop_map(|(text, end)| {
            let mut body = text.into_bytes();
            body.truncate(end.index(body.len()));
            body
        }),
    ]
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(headers::integer),
        any::<u64>().prop_map(headers::unsigned),
        any::<f32>().prop_map(|value| headers::float(value.into())),
        any::<f64>().prop_map(headers::float),
        any::<Vec<u8>>().prop_map(|value| headers::text(&value)),
        any::<String>().prop_map(Value::from),
        any::<Vec<u8>>().prop_map(|value| headers::bytes(&value)),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(6, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(any::<String>(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn any_headers() -> impl Strategy<Value = Headers> {
    prop::collection::hash_map(any::<String>(), any_json(), 0..4).prop_map(|map| map.into_iter().collect())
}

#[derive(Clone, Debug)]
struct Properties {
    message_id: Option<String>,
    content_type: Option<String>,
    timestamp: Option<u64>,
    sent_at: Option<u64>,
    headers: Headers,
}

impl Properties {
    fn message<'a>(&'a self, seq: u64, redelivered: bool, body: &'a [u8]) -> Message<'a> {
        let mut message = Message::new(seq, redelivered, body);
        message.message_id = self.message_id.as_deref().map(Cow::Borrowed);
        message.content_type = self.content_type.as_deref().map(Cow::Borrowed);
        message.timestamp = self.timestamp;
        message.sent_at = self.sent_at;
        message.headers = self.headers.clone();
        message
    }
}

prop_compose! {
    fn any_properties()(
        message_id: Option<String>,
        content_type: Option<String>,
        timestamp: Option<u64>,
        sent_at: Option<u64>,
        headers in any_headers(),
    ) -> Properties {
        Properties { message_id, content_type, timestamp, sent_at, headers }
    }
}

fn any_small_server_frame() -> impl Strategy<Value = ServerFrame<'static>> {
    let seconds =
        prop_oneof![(0..1_000_000_u64).prop_map(|ms| Duration::from_millis(ms).into()), (0.0..1e300).prop_map(Seconds)];
    let names = any::<[String; 4]>();
    let numbers = (any::<u32>(), any::<u16>(), any::<u64>(), seconds, any::<Option<bool>>());
    let event = prop::sample::select(vec![Event::BrokerLost, Event::BrokerBack, Event::QueueRecreated]);
    prop_oneof![
        (names, numbers).prop_map(|([session, client, consumer, instance], numbers)| {
            let (pending, window, expires_at, ping_interval, resumed) = numbers;
            ServerFrame::Welcome(Welcome {
                session: session.into(),
                client: client.into(),
                consumer: consumer.into(),
                instance: instance.into(),
                pending,
                window,
                expires_at,
                ping_interval,
                resumed,
            })
        }),
        any::<u64>().prop_map(|expires_at| ServerFrame::Refreshed { expires_at }),
        any::<u64>().prop_map(|seconds| ServerFrame::Expiring { r#in: seconds }),
        any::<String>().prop_map(|reason| ServerFrame::Error { reason: reason.into() }),
        event.prop_map(|event| ServerFrame::Notice { event }),
        Just(ServerFrame::Pong),
        any::<(u16, String, [u64; 2])>().prop_map(|(code, reason, retry_after_ms)| ServerFrame::Bye {
            code,
            reason: reason.into(),
            retry_after_ms,
        }),
    ]
}

fn any_client_frame() -> impl Strategy<Value = ClientFrame<'static>> {
    prop_oneof![
        any::<u64>().prop_map(|seq| ClientFrame::Ack { seq }),
        any::<(u64, bool)>().prop_map(|(seq, requeue)| ClientFrame::Nack { seq, requeue }),
        any::<String>().prop_map(|token| ClientFrame::Refresh { token: Token(token.into()) }),
        Just(ClientFrame::Ping),
    ]
}

/// The contract over a whole JSON value.
fn allowed(value: &Value) -> Option<ClientFrame<'static>> {
    let fields = value.as_object()?;
    let seq = || fields.get("seq")?.as_u64();
    match fields.get("type")?.as_str()? {
        "ack" => Some(ClientFrame::Ack { seq: seq()? }),
        "nack" => {
            let requeue = fields.get("requeue").map_or(Some(true), Value::as_bool)?;
            Some(ClientFrame::Nack { seq: seq()?, requeue })
        }
        "refresh" => Some(ClientFrame::Refresh { token: Token(fields.get("token")?.as_str()?.to_owned().into()) }),
        "ping" => Some(ClientFrame::Ping),
        _ => None,
    }
}

/// Values at the border of what is allowed.
fn near_frame() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["type", "seq", "requeue", "token", "Type", "x", ""]).prop_map(str::to_owned);
    let kind = prop::sample::select(vec!["ack", "nack", "refresh", "ping", "pong"]);
    let good = prop_oneof![
        kind.prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from)
    ];
    let any_fields = prop::collection::vec((name, prop_oneof![3 => good, 1 => any_json()]), 0..6);
    (any_client_frame(), any_fields, any::<bool>()).prop_map(|(frame, others, from_frame)| {
        let mut fields: Map<String, Value> = others.into_iter().collect();
        if from_frame {
            let frame: Map<String, Value> = serde_json::from_str(&frame.encode()).unwrap();
            for (name, value) in frame {
                fields.entry(name).or_insert(value);
            }
        }
        fields.into()
    })
}

proptest! {
    #[test]
    fn any_message_arrives_as_it_was(
        (seq, redelivered) in any::<(u64, bool)>(),
        body in any_body(),
        properties in any_properties(),
    ) {
        let frame = message(properties.message(seq, redelivered, &body));
        let text = frame.encode();
        let read: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read.get("body").is_some(), std::str::from_utf8(&body).is_ok());
        prop_assert!(read.get("body").is_some() != read.get("bodyBase64").is_some());
        let again = ServerFrame::parse(&text).unwrap();
        prop_assert_eq!(&again, &frame);
        let ServerFrame::Message(again) = again else { panic!("{text}") };
        prop_assert_eq!(again.body(), body);
    }

    #[test]
    fn any_frame_of_the_server_is_read_as_it_was_written(frame in any_small_server_frame()) {
        let text = frame.encode();
        prop_assert!(serde_json::from_str::<Value>(&text).unwrap().is_object());
        prop_assert_eq!(ServerFrame::parse(&text), Ok(frame));
    }

    #[test]
    fn any_frame_of_the_client_is_read_as_it_was_written(frame in any_client_frame()) {
        let text = frame.encode();
        prop_assert!(serde_json::from_str::<Value>(&text).unwrap().is_object());
        prop_assert_eq!(ClientFrame::parse(&text), Ok(frame));
    }

    #[test]
    fn any_json_is_a_frame_only_as_far_as_the_contract_goes(value in prop_oneof![4 => near_frame(), 1 => any_json()]) {
        let text = value.to_string();
        prop_assert_eq!(ClientFrame::parse(&text).ok(), allowed(&value));
        let _ = ServerFrame::parse(&text);
    }

    #[test]
    fn garbage_is_refused_without_a_word_of_it(text in prop_oneof![
        any::<Vec<u8>>().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        "(\\{|\\}|\\[|\\]|,|:|\"|type|seq|token|ack|refresh|[0-9.eE+-]|\\\\u[0-9a-f]{4}| |\n){0,40}",
    ]) {
        let parsed = ClientFrame::parse(&text);
        let allowed = serde_json::from_str::<Value>(&text).ok().as_ref().and_then(allowed);
        prop_assert!(parsed.is_err() || parsed.as_ref().ok() == allowed.as_ref());
        if let Err(error) = parsed {
            let place_aside = error.to_string().replace(|digit: char| digit.is_ascii_digit(), "");
            let faults = [
                "no JSON object",
                "bad JSON at line , column ",
                "unknown type",
                "type is missing, of the wrong kind, or there twice",
                "seq is missing, of the wrong kind, or there twice",
                "token is missing, of the wrong kind, or there twice",
            ];
            let said = place_aside.strip_prefix("not a frame of rabbitmq-msg.v: ");
            prop_assert!(said.is_some_and(|said| faults.contains(&said)), "{}", error);
        }
        let _ = ServerFrame::parse(&text);
    }

    #[test]
    fn a_frame_with_one_byte_changed_never_panics(frame in any_client_frame(), at: prop::sample::Index, byte: u8) {
        let mut bytes = frame.encode().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(text) = std::str::from_utf8(&bytes)
            && let Ok(read) = ClientFrame::parse(text)
        {
            prop_assert_eq!(Some(read), allowed(&serde_json::from_str(text).unwrap()));
        }
    }
}
