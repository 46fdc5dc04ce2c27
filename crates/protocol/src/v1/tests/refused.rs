//! What is no frame, and what is said about it.

use super::*;

/// The whole error text: a constant but for the place, so that nothing of the frame can be in it.
fn check(text: &str, error: &str) {
    let shown = &text[..text.len().min(60)];
    let refused = ClientFrame::parse(text).expect_err(shown).to_string();
    assert_eq!(refused, format!("not a frame of rabbitmq-msg.v1: {error}"), "{shown}");
    assert!(refused.len() <= 123, "does not fit into a close frame: {refused}");
}

const TYPE: &str = "type is missing, of the wrong kind, or there twice";
const SEQ: &str = "seq is missing, of the wrong kind, or there twice";
const NACK: &str = "seq or requeue is missing, of the wrong kind, or there twice";
const TOKEN: &str = "token is missing, of the wrong kind, or there twice";

#[test]
fn what_is_no_object() {
    for text in [
        "",
        " ",
        "null",
        "1",
        "\"ping\"",
        "ping",
        "[]",
        r#"["ack",1]"#,
        r#"["ping"]"#,
        r#"[{"type":"ping"}]"#,
        "\0",
        "\u{feff}{\"type\":\"ping\"}",
        "\u{a0}{\"type\":\"ping\"}",
        "}",
        r#"'type'"#,
    ] {
        check(text, "no JSON object");
    }
    check(&"[".repeat(1_000_000), "no JSON object");
}

#[test]
fn what_is_no_json() {
    check("{", "bad JSON at line 1, column 1");
    check(r#"{"type":"ping""#, "bad JSON at line 1, column 14");
    check(r#"{"type":"ping"}{"type":"ping"}"#, "bad JSON at line 1, column 16");
    check(r#"{"type":"ping"} x"#, "bad JSON at line 1, column 17");
    check("{\"type\":\"ping\"}\0", "bad JSON at line 1, column 16");
    check(r#"{"type":"ping",}"#, "bad JSON at line 1, column 16");
    check(r#"{'type':'ping'}"#, "bad JSON at line 1, column 2");
    check(r#"{type:"ping"}"#, "bad JSON at line 1, column 2");
    check("{\"type\":\n\"pi\nng\"}", "bad JSON at line 3, column 0");
    check(r#"{"type":"ping","x":NaN}"#, "bad JSON at line 1, column 20");
    check(r#"{"type":"ping","x":01}"#, "bad JSON at line 1, column 21");
    check(r#"{"type":"ping","x":"\x"}"#, "bad JSON at line 1, column 22");
    check(r#"{"type":"ping","x":[}}"#, "bad JSON at line 1, column 21");
    check("{\"type\":\"refresh\",\"token\":\"\0\"}", "bad JSON at line 1, column 27");
    check(r#"{"type":"refresh","token":"\ud800"}"#, "bad JSON at line 1, column 34");
    check(r#"{"type":"refresh","token":"\udc00\ud800"}"#, "bad JSON at line 1, column 33");
    check(r#"{"type":"\ud800"}"#, "bad JSON at line 1, column 16");
    // Any depth, no stack.
    check(&(r#"{"type":"ping","x":"#.to_owned() + &"[".repeat(1_000_000)), "bad JSON at line 1, column 1000019");
    check(&r#"{"type":"#.repeat(1_000_000), TYPE);
}

#[test]
fn what_says_no_type_of_ours() {
    for text in [
        "{}",
        r#"{"seq":1}"#,
        r#"{"Type":"ping"}"#,
        r#"{"type":null}"#,
        r#"{"type":0,"seq":1}"#,
        r#"{"type":["ping"]}"#,
        r#"{"type":{"ping":null}}"#,
        r#"{"type":"ping","type":"ping"}"#,
        r#"{"type":"ping","t\u0079pe":"ack","seq":1}"#,
    ] {
        check(text, TYPE);
    }
    for name in ["", "Ping", "ping ", "ack\\u0000", "message", "pong", "0", "secret-secret-secret"] {
        check(&format!(r#"{{"type":"{name}","seq":1}}"#), "unknown type");
    }
}

#[test]
fn fields_of_the_wrong_kind() {
    for seq in [
        "null",
        "true",
        "\"1\"",
        "1.0",
        "1e0",
        "0.5",
        "-1",
        "-0",
        "18446744073709551616",
        "[]",
        "[1]",
        "{}",
        "1,\"seq\":1",
        "1,\"s\\u0065q\":2",
    ] {
        check(&format!(r#"{{"type":"ack","seq":{seq}}}"#), SEQ);
        check(&format!(r#"{{"type":"nack","seq":{seq},"requeue":true}}"#), NACK);
    }
    check(r#"{"type":"ack"}"#, SEQ);
    // Beyond the floats; what is ignored may be like that.
    check(r#"{"type":"ack","seq":1e400}"#, "bad JSON at line 1, column 25");
    check(r#"{"type":"nack","requeue":true}"#, NACK);
    for requeue in ["null", "0", "1", "\"true\"", "[]", "{}", "true,\"requeue\":true"] {
        check(&format!(r#"{{"type":"nack","seq":1,"requeue":{requeue}}}"#), NACK);
    }
    for token in ["null", "true", "1", "[]", "[\"secret\"]", "{\"secret\":1}", "\"secret\",\"token\":\"secret\""] {
        check(&format!(r#"{{"type":"refresh","token":{token}}}"#), TOKEN);
    }
    check(r#"{"type":"refresh"}"#, TOKEN);
    check(r#"{"type":"refresh","Token":"secret"}"#, TOKEN);
}

#[test]
fn frames_of_the_server_that_are_none() {
    let object = "no JSON object";
    let fields = "the type is unknown, or a field is missing, of the wrong kind, or there twice";
    let body = "body is missing, of the wrong kind, or there twice";
    for (text, error) in [
        (r#"["pong"]"#, object),
        (r#"["refreshed",7]"#, object),
        (r#"{"type":"ping"}"#, fields),
        (r#"{"type":"pong","type":"pong"}"#, fields),
        (r#"{"type":"notice","event":"secret"}"#, fields),
        (r#"{"type":"bye","code":4002,"reason":"","retryAfterMs":[1]}"#, fields),
        (r#"{"type":"bye","code":70000,"reason":"","retryAfterMs":[1,2]}"#, fields),
        (r#"{"type":"message","seq":1,"redelivered":false,"bodyBase64":"secret!"}"#, fields),
        (r#"{"type":"message","seq":1,"redelivered":false,"bodyBase64":"/w"}"#, fields),
        (r#"{"type":"message","seq":1,"redelivered":false,"body":"a","body":"a"}"#, fields),
        (r#"{"type":"message","seq":1,"redelivered":false,"body":"a","bodyBase64":"/w=="}"#, body),
        (r#"{"type":"message","seq":1,"redelivered":false,"body":null}"#, body),
        (r#"{"type":"message","seq":1,"redelivered":false}"#, body),
        (r#"{"type":"pong""#, "bad JSON at line 1, column 14"),
    ] {
        let refused = ServerFrame::parse(text).expect_err(text).to_string();
        assert_eq!(refused, format!("not a frame of rabbitmq-msg.v1: {error}"), "{text}");
    }
    let deep = format!(r#"{{"type":"pong","x":{}}}"#, "[".repeat(100_000) + &"]".repeat(100_000));
    assert!(ServerFrame::parse(&deep).is_err(), "an error, not the end of the stack");
}
