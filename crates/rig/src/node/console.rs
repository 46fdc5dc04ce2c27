//! An Erlang shell beside the broker: exact numbers and faults in a millisecond or two, where `rabbitmqctl` takes a
//! second for each. (The management API has no numbers while statistics are off, which they are.)

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::Node;

/// Reads expressions by the line, has the broker evaluate each, prints one line. It ends with its input.
const LOOP: &str = r#"
io:setopts([{encoding, unicode}]),
Broker = list_to_atom(os:getenv("RIG_BROKER")),
Loop = fun(Loop) ->
    case io:get_line("") of
        Line when is_list(Line) ->
            Answer = try
                {ok, Tokens, _} = erl_scan:string(Line),
                {ok, Expressions} = erl_parse:parse_exprs(Tokens),
                case rpc:call(Broker, erl_eval, exprs, [Expressions, []], 60000) of
                    {value, Value, _} when is_binary(Value) -> ["ok ", unicode:characters_to_list(Value)];
                    {value, Value, _} -> io_lib:format("ok ~0tp", [Value]);
                    Other -> io_lib:format("error ~0tp", [Other])
                end
            catch
                _:Reason -> io_lib:format("error ~0tp", [Reason])
            end,
            io:put_chars([Answer, $\n]),
            Loop(Loop);
        _ -> halt(0)
    end
end,
Loop(Loop).
"#;

pub(super) struct Console {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Console {
    pub(super) fn open(node: &Node) -> Console {
        let name = format!("rig-{}-{:08x}@localhost", std::process::id(), rand::random::<u32>());
        let mut child = Command::new("erl")
            .args(["-noshell", "+B", "i", "-hidden", "-dist_listen", "false", "-sname", &name, "-eval", LOOP])
            // Its cookie lies there.
            .env("HOME", node.dir().join("home"))
            .env("ERL_EPMD_PORT", node.fact("epmd_port"))
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_CRASH_DUMP", "/dev/null")
            .env("RIG_BROKER", node.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("erl, which comes with RabbitMQ, can be run");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        Console { child, stdin, stdout }
    }

    pub(super) fn ask(&mut self, line: &str) -> Result<String, String> {
        let stdin = self.stdin.as_mut().expect("open until the drop");
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).map_err(|error| format!("the console: {error}"))?;
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).map_err(|error| format!("the console: {error}"))?;
        let answer = answer.trim_end_matches('\n');
        match answer.split_once(' ') {
            Some(("ok", value)) => Ok(value.to_owned()),
            Some((_, error)) => Err(error.to_owned()),
            None => Err("the console has ended".to_owned()),
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
