use std::collections::HashSet;

use super::Refusal;

/// Status, headers by lower-case name, body.
fn parsed(answer: &[u8]) -> (u16, Vec<(String, String)>, String) {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(answer).unwrap() else {
        panic!("the head of the answer is not complete");
    };
    let headers = response
        .headers
        .iter()
        .map(|header| (header.name.to_ascii_lowercase(), String::from_utf8(header.value.to_vec()).unwrap()))
        .collect();
    (response.code.unwrap(), headers, String::from_utf8(answer[head..].to_vec()).unwrap())
}

fn header(answer: &[u8], name: &str) -> Option<String> {
    let (_, headers, _) = parsed(answer);
    headers.into_iter().find(|(each, _)| each == name).map(|(_, value)| value)
}

#[test]
fn every_refusal_is_a_complete_answer() {
    for refusal in Refusal::ALL {
        let answer = refusal.answer_to(Some("GET"));
        let (code, _, body) = parsed(&answer);
        assert_eq!(code, refusal.status(), "{refusal:?}");
        assert!(!body.trim().is_empty(), "{refusal:?}");
        assert_eq!(header(&answer, "content-length").unwrap(), body.len().to_string(), "{refusal:?}");
        assert_eq!(header(&answer, "content-type").unwrap(), "text/plain; charset=utf-8");
        assert_eq!(header(&answer, "cache-control").unwrap(), "no-store");
        assert!(header(&answer, "connection").unwrap().ends_with("close"), "{refusal:?}");
    }
}

#[test]
fn all_is_in_the_order_of_the_status_and_labels_are_unique_snake_case() {
    let codes: Vec<u16> = Refusal::ALL.iter().map(|refusal| refusal.status()).collect();
    assert!(codes.is_sorted(), "{codes:?}");
    let labels: HashSet<&str> = Refusal::ALL.iter().map(|refusal| refusal.label()).collect();
    assert_eq!(labels.len(), Refusal::ALL.len());
    for label in labels {
        assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{label}");
    }
}

#[test]
fn headers_that_a_status_asks_for() {
    for refusal in Refusal::ALL {
        let answer = refusal.answer_to(None);
        let has = |name: &str| header(&answer, name).is_some();
        assert_eq!(has("retry-after"), refusal.status() == 503, "{refusal:?}");
        assert_eq!(has("allow"), refusal.status() == 405, "{refusal:?}");
        assert_eq!(has("www-authenticate"), refusal.status() == 401, "{refusal:?}");
        assert_eq!(has("upgrade"), refusal.status() == 426, "{refusal:?}");
        assert_eq!(has("sec-websocket-version"), refusal.status() == 426, "{refusal:?}");
    }
    let answer = Refusal::NoUpgrade.answer_to(None);
    assert_eq!(header(&answer, "connection").unwrap(), "Upgrade, close");
    assert_eq!(header(&answer, "sec-websocket-version").unwrap(), "13");
    let seconds = header(&Refusal::BrokerAway.answer_to(None), "retry-after").unwrap();
    assert_eq!(seconds.parse::<u32>().unwrap(), 5);
}

#[test]
fn the_answer_to_head_announces_a_body_and_carries_none() {
    let head = Refusal::Method.answer_to(Some("HEAD"));
    let get = Refusal::Method.answer_to(Some("GET"));
    assert_eq!(header(&head, "content-length"), header(&get, "content-length"));
    assert_eq!(parsed(&head).2, "");
    assert!(get.starts_with(&head));
}
