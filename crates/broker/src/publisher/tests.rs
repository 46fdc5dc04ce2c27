use super::*;

#[test]
fn a_message_says_when_it_was_sent() {
    let message = Message {
        id: "producer201.20902.8".to_owned(),
        routing_key: RoutingKey::new("consumer101").unwrap(),
        body: Vec::new(),
        sent_at_micros: 1_700_000_000_123_456,
        persistent: true,
    };
    let made = properties(&message).unwrap();
    assert_eq!(made.message_id().as_ref().unwrap().as_str(), "producer201.20902.8");
    assert_eq!(*made.timestamp(), Some(1_700_000_000));
    assert_eq!(*made.delivery_mode(), Some(PERSISTENT));
    assert_eq!(
        made.headers().as_ref().unwrap().inner().get(HEADER_SENT_AT),
        Some(&AMQPValue::LongLongInt(1_700_000_000_123_456))
    );
    let too_long = Message { id: "x".repeat(256), persistent: false, ..message };
    assert_eq!(properties(&too_long).unwrap_err(), IdTooLong(256));
}
