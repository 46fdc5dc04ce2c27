//! docker-compose.yml against the definitions, the programs and this directory. `docker-compose config` reads it too;
//! no engine is needed.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};
use url::Url;

use crate::definitions::{entry, has_password};
use crate::repository::{at, broker_settings, read};

const FILE: &str = "docker-compose.yml";
const BROKER: &str = "rabbitmq";
const PROXY: &str = "auth-proxy";

pub(crate) fn service(name: &str) -> Value {
    file()["services"][name].clone()
}

fn file() -> Value {
    yaml_serde::from_str(&read(FILE)).unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry.as_str().unwrap().to_owned()).collect()
}

fn duration(value: &Value) -> Duration {
    service::cli::duration(value.as_str().unwrap()).unwrap()
}

/// `127.0.0.1:5672` of the default of a program's URL option.
fn default_address<A: CommandFactory>(option: &str) -> String {
    let command = A::command();
    let argument = command.get_arguments().find(|argument| argument.get_long() == Some(option)).unwrap();
    let url = Url::parse(argument.get_default_values()[0].to_str().unwrap()).unwrap();
    format!("{}:{}", url.host_str().unwrap(), url.port().unwrap())
}

/// The directory or file, its place in the container, and the mode, of each mount that is no volume.
fn mounted_files(service: &Value) -> Vec<(String, String, String)> {
    let mounts = strings(&service["volumes"]);
    let files = mounts.iter().filter(|mount| mount.starts_with('.'));
    files
        .map(|mount| match mount.split(':').collect::<Vec<_>>()[..] {
            [from, to, mode] => (from.to_owned(), to.to_owned(), mode.to_owned()),
            _ => panic!("{mount} is not FROM:TO:ro"),
        })
        .collect()
}

fn mounted_at(source: &str) -> String {
    let files = mounted_files(&service(BROKER));
    files.into_iter().find(|(from, ..)| from == source).unwrap_or_else(|| panic!("{source} is not mounted")).1
}

#[test]
fn docker_compose_reads_it() {
    let Some(mut command) = first_that_runs(&[&["docker-compose"], &["docker", "compose"]]) else {
        panic!("docker-compose is missing: install the package docker-compose (scripts/test does)");
    };
    let output = command.current_dir(at(".")).args(["-f", FILE, "config", "--quiet"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "docker-compose config: {said}");
}

fn first_that_runs(candidates: &[&[&str]]) -> Option<Command> {
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env_remove("COMPOSE_FILE").env_remove("COMPOSE_PROFILES");
        command
    };
    let runs = |words: &&&[&str]| command(words).arg("version").output().is_ok_and(|output| output.status.success());
    candidates.iter().find(runs).map(|words| command(words))
}

#[test]
fn ports_are_those_the_programs_take_by_default_and_loopback_alone() {
    let amqp = default_address::<producers::Args>("amqp-url");
    let websocket = default_address::<consumers::Args>("url");
    assert_eq!(strings(&service(BROKER)["ports"]), [format!("{amqp}:5672"), "127.0.0.1:15672:15672".to_owned()]);
    assert_eq!(strings(&service(PROXY)["ports"]), [format!("{websocket}:9000")]);
    assert!([&amqp, &websocket].iter().all(|address| address.starts_with("127.0.0.1:")));
}

#[test]
fn mounted_files_are_in_this_directory_and_read_only() {
    let files = mounted_files(&service(BROKER));
    assert!(!files.is_empty());
    for (source, _, mode) in files {
        assert!(at(&source).is_file(), "{source} does not exist");
        assert_eq!(mode, "ro", "{source}");
    }
}

#[test]
fn the_broker_finds_its_settings_and_definitions() {
    assert_eq!(mounted_at("./rabbitmq.conf"), "/etc/rabbitmq/rabbitmq.conf");
    let (_, path) = broker_settings().into_iter().find(|(key, _)| key == "load_definitions").unwrap();
    assert_eq!(mounted_at("./rabbit_definitions.json"), path);
}

#[test]
fn the_health_check_asks_with_functions_that_exist() {
    let test = strings(&service(BROKER)["healthcheck"]["test"]);
    assert_eq!(test[..3], ["CMD", "bash", "-c"]);
    let script = read("scripts/lib/ports.sh");
    let (source, questions) = test[3].split_once(" && ").unwrap();
    assert_eq!(source, format!(". {}", mounted_at("./scripts/lib/ports.sh")));
    for question in questions.split(" && ") {
        let (function, port) = question.split_once(' ').unwrap();
        assert!(script.contains(&format!("\n{function}() {{")), "ports.sh has no {function}");
        assert!(strings(&service(BROKER)["ports"]).iter().any(|mapping| mapping.ends_with(&format!(":{port}"))));
    }
    let condition = json!({ BROKER: { "condition": "service_healthy" } });
    assert_eq!(service(PROXY)["depends_on"], condition);
}

/// The check is run as it stands, against a proxy's port that is as it says, and against one that is not.
#[test]
fn the_health_check_of_the_proxy_tells_ready_from_not_ready() {
    let proxy = service(PROXY);
    let admin = proxy["environment"]["AUTH_PROXY_ADMIN_LISTEN"].as_str().unwrap();
    let test = strings(&proxy["healthcheck"]["test"]);
    assert_eq!(test[..3], ["CMD", "bash", "-c"]);
    let (host, port) = admin.split_once(':').unwrap();
    assert_eq!(host, "127.0.0.1", "nobody outside of the container may reach it");
    let place = format!("/dev/tcp/{host}/{port} ");
    assert!(test[3].contains(&place) && test[3].contains("GET /readyz HTTP/1.0"), "{}", test[3]);
    for (status, healthy) in [("200 OK", true), ("503 Service Unavailable", false)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = format!("/dev/tcp/127.0.0.1/{} ", listener.local_addr().unwrap().port());
        let command = test[3].replace(&place, &here);
        let mut check = Command::new("bash").args(["-c", &command]).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let wanted = "GET /readyz HTTP/1.0\r\n\r\n";
        let mut request = vec![0; wanted.len()];
        stream.read_exact(&mut request).unwrap();
        assert_eq!(String::from_utf8_lossy(&request), wanted);
        write!(stream, "HTTP/1.0 {status}\r\ncontent-length: 2\r\n\r\nok").unwrap();
        drop(stream);
        assert_eq!(check.wait().unwrap().success(), healthy, "{status}");
    }
}

#[test]
fn the_proxy_logs_in_as_a_user_of_the_definitions() {
    let url = Url::parse(service(PROXY)["environment"]["AMQP_URL"].as_str().unwrap()).unwrap();
    assert!(has_password(url.username(), url.password().unwrap()), "another password than the definitions'");
    assert_eq!((url.host_str(), url.port(), url.path()), (Some(BROKER), Some(5672), "/%2f"));
    assert_eq!(entry("permissions", "user", url.username())["vhost"], "/");
}

#[test]
fn every_variable_of_the_proxy_is_one_of_its_options() {
    let help = service::cli::try_parse_from::<auth_proxy::args::Args, _>(
        auth_proxy::args::ENV_PREFIX,
        ["auth-proxy", "--help"],
    );
    let help = help.err().unwrap().render().to_string();
    let proxy = service(PROXY);
    for variable in proxy["environment"].as_object().unwrap().keys() {
        assert!(help.contains(&format!("[env: {variable}]")), "auth-proxy does not read {variable}");
    }
    let words = strings(&proxy["command"]);
    assert_eq!(words, ["auth-proxy"], "options in the command are not looked at");
}

#[test]
fn the_development_key_is_asked_for_by_name() {
    let environment = &service(PROXY)["environment"];
    assert_eq!(environment["AUTH_PROXY_DEVELOPMENT_KEY"], "true");
    assert_eq!(environment["AUTH_PROXY_LISTEN"], "0.0.0.0:9000");
    assert!(environment["JWT_SECRET"].is_null() && environment["JWT_SECRET_FILE"].is_null());
    // With both the program starts, and says so; without the first it would not.
    let words = ["auth-proxy", "--listen", "0.0.0.0:9000", "--development-key"];
    assert!(configures(&words).is_ok());
    assert!(configures(&words[..3]).is_err());
}

fn configures(words: &[&str]) -> Result<auth_proxy::config::Config, auth_proxy::config::ConfigError> {
    let mut arguments = auth_proxy::args::Args::try_parse_from(words).unwrap();
    // Whoever runs the tests may have one.
    (arguments.tokens.jwt_secret, arguments.tokens.jwt_secret_file) = (None, None);
    auth_proxy::config::Config::from_args(arguments)
}

#[test]
fn the_proxy_has_time_to_drain() {
    let drain =
        service::cli::try_parse_from::<auth_proxy::args::Args, _>("DOCS_TEST", ["auth-proxy"]).unwrap().drain_timeout;
    assert!(duration(&service(PROXY)["stop_grace_period"]) > drain);
}

#[test]
fn data_survive_down_and_up() {
    let broker = service(BROKER);
    assert!(broker["hostname"].is_string(), "the data directory is named after the host");
    let volume = strings(&broker["volumes"]).into_iter().find(|mount| mount.ends_with(":/var/lib/rabbitmq"));
    let name = volume.unwrap().split(':').next().unwrap().to_owned();
    assert!(file()["volumes"].as_object().unwrap().contains_key(&name), "{name} is no volume of the file");
}

#[test]
fn clients_cannot_reach_the_broker_but_through_the_proxy() {
    let networks = |name| strings(&service(name)["networks"]).into_iter().collect::<BTreeSet<_>>();
    let (broker, proxy) = (networks(BROKER), networks(PROXY));
    assert_eq!(broker, BTreeSet::from(["backend".to_owned()]));
    assert_eq!(proxy, BTreeSet::from(["backend".to_owned(), "edge".to_owned()]));
    // Ports of a container on nothing but internal networks are not published.
    assert_eq!(file()["networks"], json!({ "edge": null, "backend": null }));
}

#[test]
fn each_container_has_descriptors_for_its_clients() {
    for name in [BROKER, PROXY] {
        let limit = &service(name)["ulimits"]["nofile"];
        assert_eq!(*limit, json!({ "soft": 65536, "hard": 65536 }), "{name}");
    }
}

#[test]
fn the_broker_is_the_one_that_the_scripts_run() {
    let image = service(BROKER)["image"].as_str().unwrap().to_owned();
    assert!(image.starts_with("rabbitmq:4.3-management"), "{image}");
    assert!(read("scripts/lib/install.sh").contains(&format!("CONTAINER_IMAGE={image}\n")));
}
