use super::*;
use proptest::prelude::*;

fn address(client: &str, consumer: &str, instance: &str) -> Address {
    Address { client: client.into(), consumer: consumer.into(), instance: instance.into() }
}

fn queue(client: &str, consumer: &str, instance: &str) -> String {
    address(client, consumer, instance).queue().unwrap().to_string()
}

#[test]
fn the_queue_name_keeps_plain_ids_readable_and_encodes_the_rest() {
    assert_eq!(queue(DEFAULT_CLIENT, &consumer_id(101), DEFAULT_INSTANCE), "proxy-subscription-consumer-consumer101-1");
    for (consumer, encoded) in [
        ("Az09_.~", "Az09_.~"),
        ("a-b", "a%2Db"),
        ("#", "%23"),
        ("*", "%2A"),
        ("a.b", "a.b"),
        ("two words", "two%20words"),
        ("100%", "100%25"),
        ("%2D", "%252D"),
        ("line\nbreak\0", "line%0Abreak%00"),
        ("ż🐢", "%C5%BC%F0%9F%90%A2"),
        ("/?&=+:@\"'<>", "%2F%3F%26%3D%2B%3A%40%22%27%3C%3E"),
    ] {
        assert_eq!(queue("c", consumer, "1"), format!("proxy-subscription-c-{encoded}-1"));
    }
}

#[test]
fn hyphens_do_not_move_bytes_between_parts() {
    let names = [queue("a-b", "c", "d"), queue("a", "b-c", "d"), queue("a", "b", "c-d"), queue("a%2Db", "c", "d")];
    for (i, name) in names.iter().enumerate() {
        assert!(!names[..i].contains(name), "{name} twice");
    }
}

#[test]
fn an_empty_part_is_named() {
    for (address, part) in [
        (address("", "c", "1"), Part::Client),
        (address("c", "", "1"), Part::Consumer),
        (address("c", "c", ""), Part::Instance),
        (address("", "", ""), Part::Client),
    ] {
        assert_eq!(address.queue(), Err(NameError::Empty { part }));
    }
    assert_eq!(NameError::Empty { part: Part::Consumer }.to_string(), "the consumer id is empty");
}

#[test]
fn the_bound_is_255_bytes_once_encoded() {
    let frame = "proxy-subscription-c--1".len();
    let fits = "x".repeat(AMQP_NAME_BYTES_MAX - frame);
    assert_eq!(queue("c", &fits, "1").len(), AMQP_NAME_BYTES_MAX);
    let error = address("c", &format!("{fits}x"), "1").queue().unwrap_err();
    assert_eq!(error, NameError::QueueTooLong { bytes: 256, longest: Part::Consumer, longest_bytes: 233 });
    assert_eq!(
        error.to_string(),
        "the queue name would have 256 bytes of at most 255; \
         its longest part is the consumer id with 233 bytes once percent-encoded"
    );
    // 30 characters, 120 bytes, 360 once encoded.
    let error = address("c", "c", &"🐢".repeat(30)).queue().unwrap_err();
    assert_eq!(error, NameError::QueueTooLong { bytes: 383, longest: Part::Instance, longest_bytes: 360 });
}

#[test]
fn a_routing_key_is_any_text_of_1_to_255_bytes() {
    assert_eq!(RoutingKey::new("#.*\n ż").unwrap().as_str(), "#.*\n ż");
    assert_eq!(RoutingKey::new(&"x".repeat(255)).unwrap().as_str().len(), 255);
    assert_eq!(RoutingKey::new(""), Err(NameError::Empty { part: Part::RoutingKey }));
    // 128 characters, but AMQP counts bytes.
    assert_eq!(RoutingKey::new(&"ż".repeat(128)), Err(NameError::RoutingKeyTooLong { bytes: 256 }));
}

#[test]
fn ids_and_log_names() {
    assert_eq!(
        (consumer_id(101).as_str(), producer_id(u64::MAX).as_str()),
        ("consumer101", "producer18446744073709551615")
    );
    assert_eq!(address("consumer", "consumer101", "1").log_name().to_string(), "consumer.consumer101.1");
    assert_eq!(address("a", "b\nfake line", "ż\u{1b}").log_name().to_string(), r"a.b\nfake line.ż\u{1b}");
}

/// Parts over a small alphabet of troublemakers, so that clashes would be found.
fn part() -> impl Strategy<Value = String> {
    prop_oneof!["[a%2D5.-]{1,4}", any::<String>()]
}

fn any_address() -> impl Strategy<Value = Address> {
    (part(), part(), part()).prop_map(|(client, consumer, instance)| Address { client, consumer, instance })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn different_addresses_have_different_queues(a in any_address(), b in any_address()) {
        if let (Ok(qa), Ok(qb)) = (a.queue(), b.queue()) {
            prop_assert_eq!(a == b, qa == qb);
        }
    }

    /// Injective, shown by undoing it: the strongest form, since it needs no second address.
    #[test]
    fn the_address_can_be_read_back_from_the_queue(a in any_address()) {
        if let Ok(queue) = a.queue() {
            let parts: Vec<_> = queue.as_str().strip_prefix("proxy-subscription-").unwrap().split('-')
                .map(|part| percent_encoding::percent_decode_str(part).decode_utf8().unwrap().into_owned()).collect();
            prop_assert_eq!(parts, [a.client, a.consumer, a.instance]);
        }
    }

    #[test]
    fn a_queue_name_is_short_plain_ascii_and_only_then_a_name(a in any_address(), n in 1usize..80) {
        let a = Address { consumer: a.consumer.repeat(n), ..a };
        let encoded = |text: &str| text.bytes().map(|b| if b.is_ascii_alphanumeric() || b"_.~".contains(&b) { 1 } else { 3 }).sum::<usize>();
        let parts = [&a.client, &a.consumer, &a.instance];
        let bytes = "proxy-subscription---".len() + parts.iter().map(|p| encoded(p)).sum::<usize>();
        match a.queue() {
            Ok(queue) => {
                prop_assert!(bytes <= AMQP_NAME_BYTES_MAX && parts.iter().all(|p| !p.is_empty()));
                prop_assert_eq!(queue.as_str().len(), bytes);
                prop_assert!(queue.as_str().bytes().all(|b| b.is_ascii_alphanumeric() || b"_.~-%".contains(&b)));
            }
            Err(NameError::QueueTooLong { bytes: said, longest_bytes, .. }) => {
                prop_assert!(said > AMQP_NAME_BYTES_MAX);
                prop_assert_eq!(said, bytes);
                prop_assert_eq!(Some(longest_bytes), parts.iter().map(|p| encoded(p)).max());
            }
            Err(error) => prop_assert!(parts.iter().any(|p| p.is_empty()), "{}", error),
        }
    }
}
