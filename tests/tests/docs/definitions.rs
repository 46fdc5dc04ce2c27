//! `rabbit_definitions.json` and `rabbitmq.conf` against the names that the code makes.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protocol::names::{Address, EXCHANGE_CONTROL, EXCHANGE_DIRECT};
use regex::Regex;
use serde_json::{Value, json};

use crate::repository::{broker_settings, read};

/// Users of the definitions. Each one's development password is its name.
const USERS: [&str; 3] = ["admin", "producer", "auth-proxy"];

pub(crate) fn definitions() -> Value {
    serde_json::from_str(&read("rabbit_definitions.json")).unwrap()
}

/// The entry of a list of the definitions whose `key` is `name`.
pub(crate) fn entry(list: &str, key: &str, name: &str) -> Value {
    let definitions = definitions();
    let found = definitions[list].as_array().unwrap().iter().find(|entry| entry[key] == name);
    found.unwrap_or_else(|| panic!("{list} has no {name}")).clone()
}

/// Whether the hash in the definitions is that of `password`: base64 of 4 bytes of salt and SHA-256 of salt and password.
pub(crate) fn has_password(user: &str, password: &str) -> bool {
    let user = entry("users", "name", user);
    assert_eq!(user["hashing_algorithm"], "rabbit_password_hashing_sha256");
    let bytes = STANDARD.decode(user["password_hash"].as_str().unwrap()).unwrap();
    let (salt, hash) = bytes.split_at(4);
    digest(&SHA256, &[salt, password.as_bytes()].concat()).as_ref() == hash
}

#[test]
fn the_users_are_three_and_their_development_passwords_are_their_names() {
    let definitions = definitions();
    let names: Vec<_> =
        definitions["users"].as_array().unwrap().iter().map(|user| user["name"].as_str().unwrap()).collect();
    assert_eq!(names, USERS);
    for user in USERS {
        assert!(has_password(user, user), "the password of {user}");
        assert!(!has_password(user, ""), "any password fits {user}");
    }
}

#[test]
fn only_the_administrator_has_a_tag() {
    for user in USERS {
        let expected = if user == "admin" { json!(["administrator"]) } else { json!([]) };
        assert_eq!(entry("users", "name", user)["tags"], expected, "{user}");
    }
}

#[test]
fn the_exchanges_are_those_of_the_code() {
    let mut expected = Vec::new();
    for (name, kind) in [(EXCHANGE_DIRECT, "direct"), (EXCHANGE_CONTROL, "fanout")] {
        expected.push(json!({
            "name": name,
            "vhost": "/",
            "type": kind,
            "durable": true,
            "auto_delete": false,
            "internal": false,
            "arguments": {},
        }));
    }
    assert_eq!(definitions()["exchanges"], json!(expected));
}

#[test]
fn everything_is_in_the_vhost_slash() {
    let definitions = definitions();
    assert_eq!(definitions["vhosts"], json!([{"name": "/"}]));
    for list in ["permissions", "exchanges", "policies"] {
        for entry in definitions[list].as_array().unwrap() {
            assert_eq!(entry["vhost"], "/", "{entry}");
        }
    }
}

#[test]
fn the_policy_is_the_contracts() {
    let policies = json!([{
        "vhost": "/",
        "name": "proxy-subscription",
        "pattern": "^proxy-subscription-",
        "apply-to": "queues",
        // A queue has one policy, and of two with one priority either; what nobody has given a priority has 0.
        "priority": 10,
        "definition": {
            "expires": 60_000,
            "max-length": 1_000,
            // The default window times the largest body: what a leaving client hands back fits.
            "max-length-bytes": 16 * 1_048_576,
            "overflow": "reject-publish",
        },
    }]);
    assert_eq!(definitions()["policies"], policies);
    let arguments = service::cli::try_parse_from::<auth_proxy::args::Args, _>("DOCS_TEST", ["auth-proxy"]).unwrap();
    let held = u32::from(arguments.sessions.window) * arguments.sessions.max_message_bytes;
    assert_eq!(policies[0]["definition"]["max-length-bytes"], held);
}

/// Names of mailboxes as the code makes them, of plain and of odd ids.
fn mailboxes() -> Vec<String> {
    let ids = ["1", "consumer101", "a-b", "ä", "用户", "#", "*", "a.b", "a b", "%2D", "\n", "exchange.direct", "~_"];
    let address =
        |id: &str| Address { client: "consumer".to_owned(), consumer: id.to_owned(), instance: id.to_owned() };
    ids.iter().map(|id| address(id).queue().unwrap().to_string()).collect()
}

/// What nobody but the administrator has a right to.
const FOREIGN: [&str; 12] = [
    "",
    "amq.direct",
    "amq.default",
    "orders",
    "proxy-subscription",
    "proxy-control",
    "proxy-other-1",
    "xproxy-subscription-consumer-a-1",
    "proxyXsubscription-consumer-a-1",
    "exchangeXdirect",
    "xexchange.direct",
    "exchange.directx",
];

#[test]
fn permissions_allow_what_the_programs_do_and_nothing_more() {
    let own: Vec<String> = mailboxes().into_iter().chain(["proxy-control-5f3a".to_owned()]).collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let (direct, control) = (EXCHANGE_DIRECT, EXCHANGE_CONTROL);
    check("producer", "configure", &[], &[&own, &[direct, control]]);
    check("producer", "write", &[&[direct]], &[&own, &[control]]);
    check("producer", "read", &[], &[&own, &[direct, control]]);
    check("auth-proxy", "configure", &[&own], &[&[direct, control]]);
    // Writing to a queue is what binding it asks for; reading from an exchange, too.
    check("auth-proxy", "write", &[&own, &[control]], &[&[direct]]);
    check("auth-proxy", "read", &[&own, &[direct, control]], &[]);
}

fn check(user: &str, right: &str, allowed: &[&[&str]], refused: &[&[&str]]) {
    let permission = entry("permissions", "user", user);
    let text = permission[right].as_str().unwrap();
    let pattern = Regex::new(text).unwrap();
    for name in allowed.concat() {
        assert!(pattern.is_match(name), "{user} may not {right} {name:?}: {text}");
    }
    for name in refused.concat().into_iter().chain(FOREIGN) {
        // `^$` is how RabbitMQ writes "nothing"; it matches the name of the default exchange, whose right no program uses.
        let is_nothing = text == "^$" && name.is_empty();
        assert!(is_nothing || !pattern.is_match(name), "{user} may {right} {name:?}: {text}");
    }
}

#[test]
fn statistics_are_off_and_the_definitions_are_loaded() {
    let settings = broker_settings();
    let has = |key: &str, value: &str| settings.iter().any(|setting| *setting == (key.to_owned(), value.to_owned()));
    assert!(has("management_agent.disable_metrics_collector", "true"));
    assert!(has("management.rates_mode", "none"));
    assert!(settings.iter().any(|(key, _)| key == "load_definitions"));
}
