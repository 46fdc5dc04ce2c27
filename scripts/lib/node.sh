# shellcheck shell=bash
# A private RabbitMQ node from the installed server: everything it owns lies in DIR.
#   env          amqp_port=…, management_port=…, node=…, pid=…, dir=… (what `start --print-env` prints) and more
#   conf.d/      the node's addresses and the path of the definitions, read after the repository's rabbitmq.conf
#   home/        HOME of the node, with the Erlang cookie
#   data/, log/  messages and metadata; the server's log and the console of its virtual machine

state() { # key: its value from DIR/env, or nothing
    local line
    [[ -r $DIR/env ]] || return 0
    while IFS= read -r line; do
        if [[ $line == "$1="* ]]; then printf '%s' "${line#*=}"; return; fi
    done <"$DIR/env"
}

# Written beside and renamed, so that a reader never sees half a file.
save_state() {
    printf '%s\n' "amqp_port=$PORT" "management_port=$MANAGEMENT_PORT" "node=$NODE" "pid=$PID" "dir=$DIR" \
        "kind=$KIND" "sbin=${SBIN:-}" "epmd_port=${EPMD_PORT:-}" "epmd_pid=${EPMD_PID:-}" "dist_port=${DIST_PORT:-}" \
        "block=${BLOCK:-}" >"$DIR/env.new"
    mv "$DIR/env.new" "$DIR/env"
}

load_state() {
    PORT=$(state amqp_port) MANAGEMENT_PORT=$(state management_port) NODE=$(state node) PID=$(state pid)
    KIND=$(state kind) SBIN=$(state sbin) EPMD_PORT=$(state epmd_port) EPMD_PID=$(state epmd_pid)
    DIST_PORT=$(state dist_port) BLOCK=$(state block)
}

process_args() { # pid
    if [[ -d /proc/self ]]; then
        { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null
    else
        ps -ww -p "$1" -o args= 2>/dev/null
    fi
}

# A pid alone proves nothing: after a crash or a reboot it may be somebody else's. Every node carries its name on
# its command line. A zombie has no command line and counts as gone.
native_alive() { [[ -n $PID && $(process_args "$PID") == *"-push_gateway $NODE"* ]]; }
epmd_alive() { [[ -n $EPMD_PID && $(process_args "$EPMD_PID") == *epmd*"-port $EPMD_PORT "* ]]; }

# The environment of the server and of rabbitmqctl, complete: nothing of the caller's (RABBITMQ_…, ERL_…, a missing
# HOME, a locale that is not UTF-8) reaches them.
node_environment() {
    local locale=C.UTF-8
    [[ $(uname) == Darwin ]] && locale=en_US.UTF-8
    NODE_ENVIRONMENT=(
        "PATH=$PATH" "HOME=$DIR/home" "LANG=$locale" "LC_ALL=$locale" "TMPDIR=${TMPDIR:-/tmp}"
        "ERL_EPMD_PORT=$EPMD_PORT" "ERL_EPMD_ADDRESS=127.0.0.1" "ERL_CRASH_DUMP=$DIR/log/erl_crash.dump"
        "RABBITMQ_NODENAME=$NODE" "RABBITMQ_DIST_PORT=$DIST_PORT"
        "RABBITMQ_CONF_ENV_FILE=$DIR/none" "RABBITMQ_CONFIG_FILE=$ROOT/rabbitmq.conf" "RABBITMQ_CONFIG_FILES=$DIR/conf.d"
        "RABBITMQ_ADVANCED_CONFIG_FILE=$DIR/none"
        "RABBITMQ_ENABLED_PLUGINS_FILE=$DIR/enabled_plugins"
        "RABBITMQ_MNESIA_BASE=$DIR/data" "RABBITMQ_LOG_BASE=$DIR/log" "RABBITMQ_SCHEMA_DIR=$DIR/data/schema"
        "RABBITMQ_GENERATED_CONFIG_DIR=$DIR/data/config" "RABBITMQ_PID_FILE=$DIR/data/rabbitmq.pid"
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+B i -kernel inet_dist_use_interface {127,0,0,1} -push_gateway $NODE"
        "RABBITMQ_CTL_ERL_ARGS=+fnu -kernel inet_dist_use_interface {127,0,0,1}"
        "RABBITMQ_CTL_DIST_PORT_MIN=35672" "RABBITMQ_CTL_DIST_PORT_MAX=36671"
        # The server's script then becomes the virtual machine instead of watching over it: one pid, one signal.
        "RUNNING_UNDER_SYSTEMD=true"
    )
}

native_prepare() {
    umask 077
    mkdir -p "$DIR/home" "$DIR/data" "$DIR/log" "$DIR/conf.d"
    chmod 700 "$DIR"
    if [[ ! -s $DIR/home/.erlang.cookie ]]; then
        (umask 377; od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$DIR/home/.erlang.cookie")
    fi
    printf '[rabbitmq_management].\n' >"$DIR/enabled_plugins"
    cat >"$DIR/conf.d/10-node.conf" <<CONF
# Written by scripts/broker at every start.
listeners.tcp.default = 127.0.0.1:$PORT
management.tcp.ip = 127.0.0.1
management.tcp.port = $MANAGEMENT_PORT
load_definitions = $ROOT/rabbit_definitions.json
CONF
}

# Starts a program in a process group of its own (Ctrl-C in the terminal is for the script, not for the node) and
# without the caller's open files, which a pipe would otherwise wait for. Sets SPAWNED.
spawn() {
    set -m
    (exec env -i "${NODE_ENVIRONMENT[@]}" "$@" </dev/null >>"$DIR/log/console.log" 2>&1 \
        3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-) &
    SPAWNED=$!
    disown # its end is looked for by pid; no "Killed" on the terminal
    set +m
}

native_spawn() {
    local files
    files=$(ulimit -Hn)
    [[ $files == unlimited || $files -gt 65536 ]] && files=65536
    ulimit -Sn "$files"
    find_epmd
    native_stop_epmd
    native_prepare
    node_environment
    : >"$DIR/log/console.log"
    spawn "$EPMD" -address 127.0.0.1 -port "$EPMD_PORT" -relaxed_command_check
    EPMD_PID=$SPAWNED
    spawn "$SBIN/rabbitmq-server"
    PID=$SPAWNED
    save_state
}

native_ctl() {
    node_environment
    exec env -i "${NODE_ENVIRONMENT[@]}" "$SBIN/rabbitmqctl" "$@"
}

native_log() { # the last words of a node that did not come up
    grep -hiE 'eaddrinuse|error|failed|could not' "$DIR/log/console.log" "$DIR"/log/*@*.log 2>/dev/null | tail -n 5
}

native_stop_epmd() {
    epmd_alive || return 0
    kill "$EPMD_PID" 2>/dev/null || true
    wait_for 5 gone epmd_alive || kill -KILL "$EPMD_PID" 2>/dev/null || true
}

# A node with thousands of queues needs many seconds to leave in order: wait for the process, not for a time.
native_stop() {
    kill -TERM "$PID" 2>/dev/null || true
    if ! wait_for "$TIMEOUT" gone native_alive; then
        say "the node did not stop within $TIMEOUT s of SIGTERM: SIGKILL"
        native_kill
    fi
    native_stop_epmd
}

native_kill() {
    kill -KILL "$PID" 2>/dev/null || true
    wait_for 10 gone native_alive || die "process $PID does not go away, not even by SIGKILL"
    # A process that dies has no command line any more, while its sockets are still being closed.
    wait_for 5 gone listens "$PORT" || true
    native_stop_epmd
}
