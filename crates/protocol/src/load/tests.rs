use super::*;
use proptest::prelude::*;

fn hello(sent_at_micros: Option<u64>) -> Hello {
    Hello { producer: "producer201.20902".into(), number: 8, sent_at_micros }
}

#[test]
fn the_body_is_as_documented() {
    let text = |hello: Hello, size| String::from_utf8(hello.encode(size)).unwrap();
    assert_eq!(text(hello(None), None), "producer201.20902 says Hello 8");
    assert_eq!(text(hello(Some(1_700_000_000_000_000)), None), "producer201.20902 says Hello 8 @1700000000000000");
    assert_eq!(text(hello(None), Some(33)), "producer201.20902 says Hello 8   ");
    assert_eq!(text(hello(Some(5)), Some(10)), "producer201.20902 says Hello 8 @5", "longer than the size: whole");
    assert_eq!(hello(None).encode(Some(1024 * 1024)).len(), 1024 * 1024);
}

#[test]
fn log_lines_show_it_without_the_time_on_one_line() {
    assert_eq!(hello(Some(5)).to_string(), "producer201.20902 says Hello 8");
    let forged = Hello { producer: "a\nOK".into(), ..hello(None) };
    assert_eq!(forged.to_string(), r"a\nOK says Hello 8");
}

#[test]
fn what_no_producer_writes_is_no_hello() {
    for body in [
        &b""[..],
        b"producer201.20902 says Hello ",
        b"producer201.20902 says Hello x",
        b"producer201.20902 says Hello +8",
        b"producer201.20902 says Hello -8",
        b"producer201.20902 says Hello 8.",
        b"producer201.20902 says Hello 8\n",
        b"producer201.20902 says Hello 8 @",
        b"producer201.20902 says Hello 8 @x",
        b"producer201.20902 says Hello 8 @5 @6",
        b"producer201.20902 says Hello  @5",
        b"producer201.20902 says Hello 18446744073709551616",
        b"producer201.20902 says hello 8",
        b"\xff says Hello 8",
        b"8",
    ] {
        assert_eq!(Hello::parse(body), None, "{}", String::from_utf8_lossy(body));
    }
}

fn any_hello() -> impl Strategy<Value = Hello> {
    let producer = prop_oneof![any::<String>(), "( says Hello |a|8| @| ){0,4}"];
    (producer, any::<u64>(), any::<Option<u64>>()).prop_map(|(producer, number, sent_at_micros)| Hello {
        producer,
        number,
        sent_at_micros,
    })
}

proptest! {
    #[test]
    fn a_body_is_read_back_whatever_the_producer_is_called(hello in any_hello(), size in prop::option::of(0usize..300)) {
        let body = hello.encode(size);
        prop_assert!(size.is_none_or(|size| body.len() >= size));
        prop_assert_eq!(Hello::parse(&body), Some(hello));
    }

    #[test]
    fn garbage_never_panics(body in any::<Vec<u8>>()) {
        let _ = Hello::parse(&body);
    }

    #[test]
    fn near_misses_are_refused_or_say_what_they_hold(body in "[a ]{0,3}( says Hello )?[+0-9 @]{0,24}") {
        if let Some(hello) = Hello::parse(body.as_bytes()) {
            let again = Hello::parse(&hello.encode(None));
            prop_assert_eq!(again, Some(hello));
        }
    }
}
