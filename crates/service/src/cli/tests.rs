use clap::CommandFactory as _;

use super::*;

/// A program for these tests
#[derive(Debug, clap::Parser)]
#[command(name = "program")]
struct Args {
    /// Two words in one flag
    #[arg(long, default_value = "3", value_parser = duration)]
    idle_time: Duration,
    #[arg(long, env = "AMQP_URL")]
    amqp_url: Vec<String>,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    window: Option<u16>,
    #[command(flatten)]
    log: LogArgs,
    first: u64,
}

#[track_caller]
fn check(arguments: &str, expected: &str) {
    let error = try_parse_from::<Args, _>("PROGRAM", arguments.split(' ')).unwrap_err();
    assert_eq!(usage_line(&error), expected);
}

#[test]
fn usage_is_one_line() {
    check("program", "the following required arguments were not provided: <FIRST> (see --help)");
    check("program x", "invalid value 'x' for '<FIRST>': invalid digit found in string (see --help)");
    check("program 1 2", "unexpected argument '2' found (see --help)");
    check("program --windw 3 1", "unexpected argument '--windw' found; did you mean --window? (see --help)");
    check("program --window 0 1", "invalid value '0' for '--window <WINDOW>': 0 is not in 1..=65535 (see --help)");
    check(
        "program --log-format jsn 1",
        "invalid value 'jsn' for '--log-format <LOG_FORMAT>' [possible values: text, json]; did you mean json? (see --help)",
    );
    check(
        "program --idle-time soon 1",
        "invalid value 'soon' for '--idle-time <IDLE_TIME>': expected seconds (3, 0.5) or a number with a unit (250ms, 2m) (see --help)",
    );
}

#[test]
fn a_later_check_reads_the_same() {
    let error = usage_error("first > last:\n3 > 2");
    assert_eq!(usage_line(&error), "first > last: 3 > 2 (see --help)");
    assert!(error.use_stderr());
}

#[test]
fn help_is_no_error() {
    for flag in ["--help", "--version", "-h"] {
        let error = try_parse_from::<Args, _>("PROGRAM", ["program", flag]).unwrap_err();
        assert!(!error.use_stderr(), "{flag}");
    }
}

#[test]
fn every_flag_has_a_variable_and_help_names_it_without_its_value() {
    let command = with_environment(Args::command(), "PROGRAM_");
    let variables: Vec<_> = command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).collect();
    assert_eq!(variables, ["PROGRAM_IDLE_TIME", "AMQP_URL", "PROGRAM_WINDOW", "PROGRAM_LOG_FORMAT"]);
    assert!(command.get_arguments().all(clap::Arg::is_hide_env_values_set));

    let help = with_environment(Args::command(), "PROGRAM").render_help().to_string();
    assert!(help.contains("[env: PROGRAM_IDLE_TIME]"), "{help}");
    assert!(help.contains("[env: AMQP_URL]"), "{help}");
}

#[test]
fn arguments_are_read() {
    let args: Args = try_parse_from("PROGRAM", ["program", "--idle-time", "250ms", "7"]).unwrap();
    assert_eq!((args.idle_time, args.first), (Duration::from_millis(250), 7));
    assert_eq!(args.log.log_format, LogFormat::Text);
    assert_eq!((args.window, args.amqp_url.len()), (None, 0));
}

#[test]
fn durations() {
    let cases = [
        ("3", Some(3_000)),
        ("0", Some(0)),
        ("0.5", Some(500)),
        ("250ms", Some(250)),
        ("2m", Some(120_000)),
        ("1m 30s", Some(90_000)),
        ("", None),
        ("-1", None),
        ("NaN", None),
        ("inf", None),
        ("1e300", None),
        ("20years", None),
        ("soon", None),
    ];
    for (text, millis) in cases {
        assert_eq!(duration(text).ok(), millis.map(Duration::from_millis), "{text:?}");
    }
}
