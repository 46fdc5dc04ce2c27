use super::*;

fn args(typed: &str) -> Args {
    let words = std::iter::once("consumers").chain(typed.split_whitespace());
    service::cli::try_parse_from("CONSUMERS_CONFIG_TEST", words).unwrap()
}

fn problem(typed: &str) -> String {
    Config::new(args(typed)).unwrap_err().to_string()
}

fn usage(typed: &str) -> String {
    let words = std::iter::once("consumers").chain(typed.split_whitespace());
    service::cli::usage_line(&service::cli::try_parse_from::<Args, _>("CONSUMERS_CONFIG_TEST", words).unwrap_err())
}

#[test]
fn the_readme_command_with_its_defaults() {
    let config = Config::new(args("101 103 2")).unwrap();
    assert_eq!((config.total(), config.who().as_str()), (6, "(consumer101 to consumer103)*2"));
    assert_eq!(config.targets[0].url_of(2, None, false).as_str(), "ws://127.0.0.1:9000/?instance=2");
    assert_eq!(config.protocol, Protocol::V1);
    assert_eq!(config.idle_timeout, Some(Duration::from_secs(60)));
    assert!(config.development_key);
    assert_eq!(Config::new(args("7 7 --idle-timeout 0")).unwrap().idle_timeout, None);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    assert!(problem("103 101").contains("give the lower number first"));
    assert!(problem("1 1000001").contains("too many"));
    assert!(problem(&format!("0 {0} {0}", u64::MAX)).contains("too many"));
    assert!(usage("1 2 0").contains("0 is not in"));
    assert!(usage("1 2 --connect-timeout 0").contains("more than 0"));
    assert!(usage("1 2 --close-timeout 9").contains("8 s at most"));
    assert!(usage("1 2 --protocol v2").contains("raw, v1"));
    assert!(usage("1 2 --window 0").contains("not in 1..=65535"));
    assert!(usage("1 2 --window 65536").contains("not in 1..=65535"));
    assert!(usage("1 2 --slow 0").contains("more than 0"));
    assert!(usage("1 2 --stall --stall-share 0%").contains("more than 0 and up to 100"));
}

#[test]
fn urls_are_checked_before_anything_is_opened() {
    for (url, expected) in [
        ("wss://proxy", "TLS is not built in"),
        ("http://proxy", "not a WebSocket address"),
        ("127.0.0.1:9000", "give ws://HOST:PORT"),
        ("ws://me:secret@proxy", "leave them out"),
    ] {
        assert!(problem(&format!("1 2 --url {url}")).contains(expected), "{url}");
    }
    let v6 = Target::parse("ws://[::1]:9001/path?a=b").unwrap();
    assert_eq!((v6.host.as_str(), v6.port), ("::1", 9001));
    assert_eq!(v6.url_of(1, None, false).as_str(), "ws://[::1]:9001/path?a=b&instance=1");
    assert_eq!(Config::new(args("1 2 --url ws://a,ws://b --url ws://c")).unwrap().targets.len(), 3);
}

#[test]
fn misbehaviour_is_laid_out_and_said() {
    let typed = "101 103 2 --stall --stall-share 10% --no-ack --no-ack-share 20% --slow 250ms --slow-share 50%";
    let config = Config::new(args(typed)).unwrap();
    assert_eq!(
        config.misbehaving(),
        [
            "On purpose, nothing read once welcome: 1 of 6 instances, consumer.consumer101.1 to consumer.consumer101.1",
            "On purpose, no acks: 2 of 6 instances, consumer.consumer101.2 to consumer.consumer102.1",
            "On purpose, 250ms for each message: 3 of 6 instances, consumer.consumer102.2 to consumer.consumer103.2",
        ]
    );
    let everyone = Config::new(args("1 2 --no-ack")).unwrap();
    assert_eq!(everyone.behaviours.of(1, 2), Behaviour::NoAck);
    assert_eq!(Config::new(args("1 2 --stall-share 10%")).unwrap().misbehaving(), [""; 0], "a share alone is no wish");
    assert!(problem("1 2 --no-ack --stall").contains("more than 100 % together"));
    for option in ["--no-ack", "--slow 1"] {
        assert!(problem(&format!("1 2 --protocol raw {option}")).contains("give"), "{option}");
    }
    assert_eq!(Config::new(args("1 2 --protocol raw --stall")).unwrap().behaviours.of(0, 2), Behaviour::Stall);
}

#[test]
fn the_url_asks_for_what_was_wanted() {
    let target = Target::parse("ws://proxy:9000").unwrap();
    assert_eq!(target.url_of(2, Some(4), true).as_str(), "ws://proxy:9000/?instance=2&window=4&resume=true");
    for name in ["instance", "window", "resume"] {
        assert!(problem(&format!("1 2 --url ws://proxy/?{name}=1")).contains("are added to it"), "{name}");
    }
}

#[test]
fn a_client_whose_mailbox_has_no_name_is_refused() {
    assert!(problem(&format!("1 2 --client-id {}", "é".repeat(100))).contains("--client-id"));
}

#[test]
fn the_secret_comes_from_one_place() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sesame\n").unwrap();
    let path = file.path().display();
    let config = Config::new(args(&format!("1 2 --jwt-secret-file {path}"))).unwrap();
    let token = config.minter.mint("consumer1", None, Duration::from_secs(60)).unwrap();
    let verifier = protocol::token::Verifier::hs256(&SecretString::from("sesame"), None, None).unwrap();
    assert_eq!(verifier.verify(&token).unwrap().consumer, "consumer1");
    assert!(!config.development_key);

    assert!(problem(&format!("1 2 --jwt-secret x --jwt-secret-file {path}")).contains("give one of them"));
    assert!(problem("1 2 --jwt-secret-file /nowhere/at/all").contains("/nowhere/at/all"));
    assert!(problem("1 2 --jwt-secret=").contains("empty"));
}
