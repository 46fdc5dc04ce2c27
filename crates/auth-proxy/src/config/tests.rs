use std::io::Write;
use std::time::Duration;

use protocol::token::{DEVELOPMENT_KEY, Minter};
use secrecy::SecretString;
use service::cli::usage_line;

use super::{Config, ConfigError};
use crate::args::tests::without_environment;

const SECRET: &str = "a secret of this test, 32 bytes or more";

#[track_caller]
fn config(options: &[&str]) -> Config {
    Config::from_args(without_environment(options).expect("usage")).expect("a configuration")
}

/// The line that a user would see.
#[track_caller]
fn refused(options: &[&str]) -> String {
    let line = match without_environment(options) {
        Err(error) => usage_line(&error),
        Ok(args) => match Config::from_args(args) {
            Err(error) => error.to_string(),
            Ok(config) => panic!("{options:?} was taken: {config:?}"),
        },
    };
    assert!(!line.contains('\n') && !line.is_empty(), "{line:?}");
    line
}

fn accepts(config: &Config, secret: &str) -> bool {
    let minter = Minter::hs256(&SecretString::from(secret)).expect("a minter");
    config.verifier.verify(&minter.mint("alice", None, Duration::from_secs(60)).expect("a token")).is_ok()
}

fn secret_file(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(content).expect("written");
    file
}

#[test]
fn defaults() {
    let config = config(&[]);
    assert_eq!(config.id, "1");
    assert_eq!(config.listen.to_string(), "127.0.0.1:9000");
    assert_eq!(config.endpoints.len(), 1);
    assert_eq!(config.endpoints[0].to_string(), "amqp://auth-proxy@127.0.0.1:5672/%2f");
    assert_eq!((config.window, config.max_message_bytes), (16, 1024 * 1024));
    let seconds = Duration::from_secs;
    assert_eq!(
        (config.ping_interval, config.pong_timeout, config.write_timeout),
        (seconds(25), seconds(10), seconds(30))
    );
    assert_eq!((config.head_timeout, config.broker_timeout), (seconds(10), seconds(30)));
    assert_eq!((config.close_timeout, config.drain_timeout), (seconds(2), seconds(8)));
    assert_eq!((config.ack_interval, config.heartbeat), (Duration::from_millis(20), seconds(10)));
    assert_eq!((config.max_upgrades, config.max_heads), (16 * 1024, 16 * 1024));
    assert_eq!((config.max_lanes, config.declare_channels), (1024, 16));
    assert!(!config.log_messages);
}

#[test]
fn options_are_taken() {
    let config = config(&[
        "2b",
        "--listen=[::1]:0",
        "--amqp-url=amqp://a,amqp://b/v",
        "--amqp-url=amqp://c",
        "--window=65535",
        "--ping-interval=250ms",
        "--drain-timeout=0",
        "--ack-interval=0",
        "--heartbeat=1",
        "--log-messages",
    ]);
    assert_eq!(config.id, "2b");
    assert_eq!(config.endpoints.len(), 3);
    assert_eq!(config.window, 65_535);
    assert_eq!(config.ping_interval, Duration::from_millis(250));
    assert_eq!((config.drain_timeout, config.ack_interval), (Duration::ZERO, Duration::ZERO));
    assert!(config.log_messages);
}

#[test]
fn what_cannot_work_is_refused_by_name() {
    for (options, says) in [
        (&["--window=0"][..], "--window"),
        (&["--window=65536"], "--window"),
        (&["--max-message-bytes=0"], "--max-message-bytes"),
        (&["--listen=9000"], "127.0.0.1:9000"),
        (&["--listen=localhost:9000"], "127.0.0.1:9000"),
        (&["--amqp-url=http://h"], "--amqp-url"),
        (&["--amqp-url="], "--amqp-url"),
        (&["--ping-interval=0"], "--ping-interval"),
        (&["--pong-timeout=0"], "--pong-timeout"),
        (&["--write-timeout=0s"], "--write-timeout"),
        (&["--head-timeout=0"], "--head-timeout"),
        (&["--broker-timeout=1y"], "--broker-timeout"),
        (&["--drain-timeout=-1"], "--drain-timeout"),
        (&["--close-timeout=1y"], "--close-timeout"),
        (&["--ack-interval=11"], "--ack-interval"),
        (&["--heartbeat=0"], "--heartbeat"),
        (&["--heartbeat=1.5"], "--heartbeat"),
        (&["--heartbeat=601"], "--heartbeat"),
        (&["--max-upgrades=0"], "--max-upgrades"),
        (&["--max-heads=0"], "--max-heads"),
        (&["--max-lanes=0"], "--max-lanes"),
        (&["--declare-channels=0"], "--declare-channels"),
        (&["--jwt-issuer="], "--jwt-issuer"),
        (&["--jwt-audience="], "--jwt-audience"),
        (&[""], "ID"),
        (&["a b"], "ID"),
        (&["a\nb"], "ID"),
        (&["a\u{202e}b"], "ID"),
        (&["1", "2"], "2"),
        (&["--no-such-option"], "--no-such-option"),
    ] {
        let line = refused(options);
        assert!(line.contains(says), "{options:?}: {line}");
    }
    assert!(refused(&["--jwt-secret-file=/no/such/file"]).contains("/no/such/file"));
    assert!(refused(&[&"x".repeat(65)]).contains("ID"));
}

#[test]
fn the_development_key_is_loud_on_loopback_and_refused_elsewhere() {
    for listen in ["127.0.0.1:0", "127.1.2.3:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        let config = config(&["--listen", listen]);
        assert!(accepts(&config, DEVELOPMENT_KEY) && !accepts(&config, SECRET), "{listen}");
        assert_eq!(config.warnings.len(), 1, "{listen}");
        assert!(config.warnings[0].contains("development key"), "{:?}", config.warnings);
    }
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "[::ffff:192.0.2.1]:0"] {
        assert!(refused(&["--listen", listen]).contains("--development-key"), "{listen}");
        let config = config(&["--listen", listen, "--development-key"]);
        assert!(accepts(&config, DEVELOPMENT_KEY), "{listen}");
        assert!(config.warnings[0].contains("NOT LOOPBACK"), "{:?}", config.warnings);
    }
}

#[test]
fn the_development_key_is_not_hidden_by_configuring_it() {
    let options = ["--listen=0.0.0.0:0", "--jwt-secret", DEVELOPMENT_KEY];
    assert!(refused(&options).contains("--development-key"));
}

#[test]
fn a_secret_is_used_instead() {
    let config = config(&["--listen=0.0.0.0:0", "--jwt-secret", SECRET]);
    assert!(accepts(&config, SECRET) && !accepts(&config, DEVELOPMENT_KEY));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn a_secret_beside_the_development_key_wins_and_says_so() {
    let config = config(&["--listen=0.0.0.0:0", "--jwt-secret", SECRET, "--development-key"]);
    assert!(accepts(&config, SECRET) && !accepts(&config, DEVELOPMENT_KEY));
    assert!(config.warnings[0].contains("no effect"), "{:?}", config.warnings);
}

#[test]
fn a_secret_file_is_read_without_its_line_end() {
    for end in ["", "\n", "\r\n"] {
        let file = secret_file(format!("{SECRET}{end}").as_bytes());
        let path = file.path().to_str().expect("a path");
        assert!(accepts(&config(&["--jwt-secret-file", path]), SECRET), "{end:?}");
    }
    let spaced = format!("{SECRET} \n");
    let file = secret_file(format!("{spaced}\n").as_bytes());
    assert!(accepts(&config(&["--jwt-secret-file", file.path().to_str().expect("a path")]), &spaced));
}

#[test]
fn secrets_that_are_none() {
    for content in [&b""[..], b"\n", b"\r\n"] {
        let file = secret_file(content);
        let line = refused(&["--jwt-secret-file", file.path().to_str().expect("a path")]);
        assert!(line.contains("empty"), "{line}");
    }
    assert!(refused(&["--jwt-secret="]).contains("empty"));
    for content in [vec![0xff; 40], vec![b'x'; 64 * 1024 + 1]] {
        let file = secret_file(&content);
        let line = refused(&["--jwt-secret-file", file.path().to_str().expect("a path")]);
        assert!(line.contains("text"), "{line}");
    }
    let file = secret_file(SECRET.as_bytes());
    let both = refused(&["--jwt-secret", SECRET, "--jwt-secret-file", file.path().to_str().expect("a path")]);
    assert!(both.contains("both"), "{both}");
    assert!(!both.contains(SECRET), "{both}");
    assert!(refused(&["--jwt-secret-file=/"]).contains("cannot be read"));
}

#[test]
fn a_short_secret_is_loud_on_loopback_and_refused_elsewhere() {
    let short = &SECRET[..31];
    let config = config(&["--jwt-secret", short]);
    assert!(accepts(&config, short));
    assert!(config.warnings[0].contains("31 bytes"), "{:?}", config.warnings);
    let line = refused(&["--listen=0.0.0.0:0", "--jwt-secret", short]);
    assert!(line.contains("31 bytes") && !line.contains(short), "{line}");
    assert!(self::config(&["--jwt-secret", &SECRET[..32]]).warnings.is_empty());
}

#[test]
fn issuer_and_audience_reach_the_verifier() {
    assert!(!accepts(&config(&["--jwt-secret", SECRET, "--jwt-issuer=me"]), SECRET));
    assert!(!accepts(&config(&["--jwt-secret", SECRET, "--jwt-audience=us"]), SECRET));
}

#[test]
fn nothing_shows_a_secret() {
    let options = ["--jwt-secret", SECRET, "--amqp-url=amqp://u:swordfish@h"];
    let shown = format!("{:?}", config(&options));
    assert!(!shown.contains(SECRET) && !shown.contains("swordfish"), "{shown}");
    // Not as bytes either.
    let bytes = format!("{:?}", SECRET.as_bytes());
    assert!(!shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    let error =
        ConfigError::AmqpUrl(broker::endpoint::Endpoint::parse("http://u:swordfish@h", "u").expect_err("a scheme"));
    assert!(!error.to_string().contains("swordfish"));
}

#[test]
fn an_admin_port_that_others_can_reach_is_loud() {
    assert_eq!(config(&["--jwt-secret", SECRET]).admin_listen, None);
    for quiet in ["127.0.0.1:9100", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        let config = config(&["--jwt-secret", SECRET, "--admin-listen", quiet]);
        assert!(config.admin_listen.is_some() && config.warnings.is_empty(), "{:?}", config.warnings);
    }
    for loud in ["0.0.0.0:9100", "[::]:0", "192.0.2.1:9100"] {
        let config = config(&["--jwt-secret", SECRET, "--admin-listen", loud]);
        assert!(config.warnings[0].contains("--admin-listen"), "{:?}", config.warnings);
    }
}
