# shellcheck shell=bash disable=SC2034 # variables are shared with scripts/broker
# Where RabbitMQ comes from: what is installed, else apt, Homebrew or a container.

INSTALL_HINT="RabbitMQ 3.10 or later is needed: install the package rabbitmq-server (or Docker, and start it), or set AMQP_URL to a broker elsewhere"
CONTAINER_IMAGE=rabbitmq:4.3-management

# Sets SBIN to a directory with the server's own scripts, or returns 1. Debian's /usr/sbin/rabbitmq-server is a
# wrapper that insists on the user `rabbitmq` and its home, which is not what a private node wants.
find_server() {
    local candidate brew_prefix=
    have brew && brew_prefix=$(brew --prefix 2>/dev/null)
    for candidate in "${BROKER_SBIN:-}" /usr/lib/rabbitmq/bin "${brew_prefix:+$brew_prefix/opt/rabbitmq/sbin}" \
        "$(dirname "$(command -v rabbitmq-server || echo /nowhere/x)")"; do
        if [[ -n $candidate && -x $candidate/rabbitmq-server && -x $candidate/rabbitmqctl ]]; then
            SBIN=$candidate
            return
        fi
    done
    return 1
}

find_epmd() {
    if have epmd; then EPMD=$(command -v epmd); return; fi
    local erl
    erl=$(command -v erl) || die "epmd is missing: it comes with Erlang; install Erlang's runtime and try again"
    erl=$(erl -noshell -eval 'io:put_chars(code:root_dir()), halt().' 2>/dev/null)
    for EPMD in "$erl"/erts-*/bin/epmd; do [[ -x $EPMD ]] && return; done
    die "epmd is missing: it comes with Erlang; install Erlang's runtime and try again"
}

engine_answers() { have docker && docker info >/dev/null 2>&1; }

# Makes a server or a container engine available. Sets KIND to `native` (and SBIN) or to `container`.
ensure_server() {
    if find_server; then KIND=native; return; fi
    if have apt-get && can_be_root; then
        install_with_apt && find_server && { KIND=native; return; }
    elif [[ $(uname) == Darwin ]] && have brew; then
        say "installing with Homebrew: rabbitmq"
        brew install --quiet rabbitmq >&2 && find_server && { KIND=native; return; }
    fi
    if engine_answers; then KIND=container; return; fi
    die "$INSTALL_HINT"
}

# Debian starts what it installs: a system-wide node on 5672 that nobody asked for. policy-rc.d forbids that for the
# length of the installation; what was started or enabled all the same is switched off, since the package is ours.
install_with_apt() {
    local policy=/usr/sbin/policy-rc.d ours=
    if [[ ! -e $policy ]]; then
        ours=$policy
        # shellcheck disable=SC2016 # the inner shell is to expand $1
        as_root sh -c 'printf "#!/bin/sh\nexit 101\n" >"$1" && chmod 755 "$1"' sh "$policy"
    fi
    local result=0
    apt_install rabbitmq-server || result=$?
    [[ -z $ours ]] || as_root rm -f "$ours"
    [[ $result == 0 ]] || return "$result"
    if [[ -d /run/systemd/system ]]; then
        as_root systemctl disable --now rabbitmq-server.service >/dev/null 2>&1 || true
    elif [[ -z $ours ]] && have service; then
        as_root service rabbitmq-server stop >/dev/null 2>&1 || true
    fi
}
