use std::time::Duration;

use serde_json::json;

use super::*;

mod properties;
mod refused;

/// The frame is written as this text, and the text is read as the frame.
fn check_server(frame: &ServerFrame<'_>, text: &str) {
    assert_eq!(frame.encode(), text);
    assert_eq!(ServerFrame::parse(text).as_ref(), Ok(frame));
}

fn check_client(frame: &ClientFrame<'_>, text: &str) {
    assert_eq!(frame.encode(), text);
    assert_eq!(ClientFrame::parse(text).as_ref(), Ok(frame));
}

fn welcome() -> Welcome<'static> {
    Welcome {
        session: "1.17".into(),
        client: "consumer".into(),
        consumer: "consumer101".into(),
        instance: "2".into(),
        pending: 3,
        window: 16,
        expires_at: 1_700_000_000,
        ping_interval: Duration::from_secs(25).into(),
        resumed: None,
    }
}

fn message(message: Message<'_>) -> ServerFrame<'_> {
    ServerFrame::Message(Box::new(message))
}

#[test]
fn welcome_says_whose_session_it_is_and_how_it_stands() {
    check_server(
        &ServerFrame::Welcome(welcome()),
        r#"{"type":"welcome","session":"1.17","client":"consumer","consumer":"consumer101","instance":"2","pending":3,"window":16,"expiresAt":1700000000,"pingInterval":25}"#,
    );
    let resumed = Welcome { resumed: Some(false), ping_interval: Duration::from_millis(1500).into(), ..welcome() };
    check_server(
        &ServerFrame::Welcome(resumed),
        r#"{"type":"welcome","session":"1.17","client":"consumer","consumer":"consumer101","instance":"2","pending":3,"window":16,"expiresAt":1700000000,"pingInterval":1.5,"resumed":false}"#,
    );
}

#[test]
fn a_message_carries_what_its_producer_said_and_no_more() {
    check_server(
        &message(Message::new(1, false, b"producer201.20902 says Hello 8")),
        r#"{"type":"message","seq":1,"redelivered":false,"body":"producer201.20902 says Hello 8"}"#,
    );
    let mut full = Message::new(u64::MAX, true, b"{\"a\": \"\xf0\x9f\x90\xa2\"}");
    full.message_id = Some("m-1".into());
    full.content_type = Some("application/json".into());
    full.timestamp = Some(1_700_000_000);
    full.sent_at = Some(1_700_000_000_000_123);
    full.headers.insert("trace".into(), json!(["a", {"b": [true, null, -1, 0.1]}]));
    check_server(
        &message(full),
        r#"{"type":"message","seq":18446744073709551615,"redelivered":true,"messageId":"m-1","contentType":"application/json","timestamp":1700000000,"sentAt":1700000000000123,"headers":{"trace":["a",{"b":[true,null,-1,0.1]}]},"body":"{\"a\": \"🐢\"}"}"#,
    );
}

/// The part of a message's text that carries the body.
fn check_body(body: &[u8], text: &str) {
    let frame = message(Message::new(1, false, body));
    check_server(&frame, &format!(r#"{{"type":"message","seq":1,"redelivered":false,{text}}}"#));
    let ServerFrame::Message(again) = ServerFrame::parse(&frame.encode()).unwrap() else { panic!("{frame:?}") };
    assert_eq!(again.body(), body);
}

#[test]
fn a_body_is_text_if_it_can_be_and_else_base64() {
    check_body(b"", r#""body":"""#);
    check_body(b"\0", r#""body":"\u0000""#);
    check_body(b"\r\n\t\"\\/\x7f", r#""body":"\r\n\t\"\\/""#.replace('/', "/\u{7f}").as_str());
    check_body("\u{2028}\u{feff}".as_bytes(), "\"body\":\"\u{2028}\u{feff}\"");
    check_body(br"\ud800", r#""body":"\\ud800""#);
    check_body(&[0xff], r#""bodyBase64":"/w==""#);
    check_body(&[0xfb, 0xff, 0xbf], r#""bodyBase64":"+/+/""#);
    check_body(b"\xed\xa0\x80", r#""bodyBase64":"7aCA""#);
    check_body(b"\xf0\x9f\x90", r#""bodyBase64":"8J+Q""#);
}

#[test]
fn small_frames_of_the_server() {
    check_server(&ServerFrame::Refreshed { expires_at: 7 }, r#"{"type":"refreshed","expiresAt":7}"#);
    check_server(&ServerFrame::Expiring { r#in: 60 }, r#"{"type":"expiring","in":60}"#);
    check_server(&ServerFrame::Error { reason: "no".into() }, r#"{"type":"error","reason":"no"}"#);
    for (event, name) in [
        (Event::BrokerLost, "broker-lost"),
        (Event::BrokerBack, "broker-back"),
        (Event::QueueRecreated, "queue-recreated"),
    ] {
        check_server(&ServerFrame::Notice { event }, &format!(r#"{{"type":"notice","event":"{name}"}}"#));
    }
    check_server(&ServerFrame::Pong, r#"{"type":"pong"}"#);
    check_server(
        &ServerFrame::Bye { code: 4002, reason: "draining".into(), retry_after_ms: [100, 5000] },
        r#"{"type":"bye","code":4002,"reason":"draining","retryAfterMs":[100,5000]}"#,
    );
}

#[test]
fn frames_of_the_client() {
    check_client(&ClientFrame::Ack { seq: 0 }, r#"{"type":"ack","seq":0}"#);
    check_client(&ClientFrame::Ack { seq: u64::MAX }, r#"{"type":"ack","seq":18446744073709551615}"#);
    check_client(&ClientFrame::Nack { seq: 5, requeue: true }, r#"{"type":"nack","seq":5,"requeue":true}"#);
    check_client(&ClientFrame::Nack { seq: 5, requeue: false }, r#"{"type":"nack","seq":5,"requeue":false}"#);
    check_client(&refresh("a.b.c"), r#"{"type":"refresh","token":"a.b.c"}"#);
    check_client(&refresh("\0\"\u{10ffff}"), "{\"type\":\"refresh\",\"token\":\"\\u0000\\\"\u{10ffff}\"}");
    check_client(&ClientFrame::Ping, r#"{"type":"ping"}"#);
}

fn refresh(token: &str) -> ClientFrame<'_> {
    ClientFrame::Refresh { token: Token(token.into()) }
}

/// Other texts than ours that say the same.
#[test]
fn order_blanks_and_escapes_do_not_matter() {
    let ack = Ok(ClientFrame::Ack { seq: 1 });
    for text in [
        r#"{"seq":1,"type":"ack"}"#,
        "\r\n\t {\t\"type\"\n:\r\"ack\" , \"seq\" : 1 }\n",
        r#"{"\u0074ype":"\u0061ck","s\u0065q":1}"#,
    ] {
        assert_eq!(ClientFrame::parse(text), ack, "{text}");
    }
    let nack = ClientFrame::parse(r#"{"type":"nack","seq":1}"#);
    assert_eq!(nack, Ok(ClientFrame::Nack { seq: 1, requeue: true }), "what does not say goes back");
}

#[test]
fn unknown_fields_are_ignored_whatever_is_in_them() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let deep_objects = r#"{"a":"#.repeat(100_000) + "1" + &"}".repeat(100_000);
    let values = [
        "null",
        "true",
        "1e999",
        "-0",
        "123456789012345678901234567890",
        r#""""#,
        r#""\ud800""#,
        r#""\u0000""#,
        "[]",
        "{}",
        r#"{"type":"nack","seq":9}"#,
        r#"[{"a":[[]]},"b"]"#,
        &deep,
        &deep_objects,
    ];
    for value in values {
        let name = &value[..value.len().min(20)];
        let text = format!(r#"{{"x":{value},"type":"ack","":{value},"x":{value},"seq":1,"Seq":{value}}}"#);
        assert_eq!(ClientFrame::parse(&text), Ok(ClientFrame::Ack { seq: 1 }), "{name}");
        let text = format!(r#"{{"token":{value},"seq":{value},"seq":{value},"type":"ping","requeue":{value}}}"#);
        assert_eq!(ClientFrame::parse(&text), Ok(ClientFrame::Ping), "{name}: fields of other types");
    }
    for value in ["null", "true", "-1", r#""a""#, r#"[{"a":[[]]},"b"]"#, r#"{"type":"bye"}"#] {
        let text = format!(r#"{{"x":{value},"type":"pong","seq":{value},"x":{value}}}"#);
        assert_eq!(ServerFrame::parse(&text), Ok(ServerFrame::Pong), "{text}");
        let text = format!(r#"{{"x":{value},"type":"refreshed","expiresAt":7,"seq":{value}}}"#);
        assert_eq!(ServerFrame::parse(&text), Ok(ServerFrame::Refreshed { expires_at: 7 }), "{text}");
    }
}

#[test]
fn a_token_of_a_megabyte_is_read_and_never_shown() {
    let token = "secret".repeat(200_000);
    let frame = refresh(&token);
    assert_eq!(ClientFrame::parse(&frame.encode()).as_ref(), Ok(&frame));
    assert_eq!(format!("{frame:?}"), "Refresh { token: Token(…) }");
    assert_eq!(format!("{frame:#?}"), "Refresh {\n    token: Token(…),\n}");
}

#[test]
fn headers_are_json_or_the_nearest_to_it() {
    const EXACT: i64 = 1 << 53;
    assert_eq!(headers::integer(EXACT), json!(9_007_199_254_740_992_i64));
    assert_eq!(headers::integer(-EXACT), json!(-9_007_199_254_740_992_i64));
    assert_eq!(headers::integer(EXACT + 1), json!("9007199254740993"));
    assert_eq!(headers::integer(-EXACT - 1), json!("-9007199254740993"));
    assert_eq!(headers::integer(i64::MIN), json!("-9223372036854775808"));
    assert_eq!(headers::unsigned(1 << 53), json!(9_007_199_254_740_992_u64));
    assert_eq!(headers::unsigned(u64::MAX), json!("18446744073709551615"));
    assert_eq!(headers::float(0.1), json!(0.1));
    assert_eq!(headers::float(f64::NAN), json!("NaN"));
    assert_eq!(headers::float(f64::INFINITY), json!("inf"));
    assert_eq!(headers::float(f64::NEG_INFINITY), json!("-inf"));
    assert_eq!(headers::text("ä\0".as_bytes()), json!("ä\0"));
    assert_eq!(headers::text(&[0xe4]), json!({"base64": "5A=="}));
    assert_eq!(headers::bytes(b""), json!({"base64": ""}));
    assert_eq!(headers::bytes(b"abc"), json!({"base64": "YWJj"}));
}
