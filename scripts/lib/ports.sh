# shellcheck shell=bash disable=SC2034 # variables are shared with scripts/broker
# Ports for nodes that run side by side, and the two questions asked of them: does anybody listen, and is it ready.

# Below the range that Linux and macOS hand out to outgoing connections, which could otherwise take a port between
# the look and the listen.
PORTS_FIRST=20000
PORTS_BLOCKS=3000
PORTS_BLOCK=4

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Claims a block of four ports for the node in $1 and sets BLOCK to the first. A claim is a symbolic link named after
# the port and pointing at the node's directory: made in one step, so that starts in parallel never share one, and
# void once that directory is gone.
claim_block() {
    local dir=$1 attempt port claim owner
    CLAIMS=${TMPDIR:-/tmp}/push-gateway-ports-$(id -u)
    mkdir -p "$CLAIMS"
    for (( attempt = 0; attempt < 200; attempt++ )); do
        BLOCK=$(( PORTS_FIRST + PORTS_BLOCK * ((RANDOM * 32768 + RANDOM) % PORTS_BLOCKS) ))
        claim=$CLAIMS/$BLOCK
        if owner=$(readlink "$claim" 2>/dev/null); then
            [[ -d $owner ]] && continue
            rm -f "$claim"
        fi
        ln -sn "$dir" "$claim" 2>/dev/null || continue
        for (( port = BLOCK; port < BLOCK + PORTS_BLOCK; port++ )); do
            if listens "$port"; then rm -f "$claim"; continue 2; fi
        done
        return
    done
    die "no four free ports in a row between $PORTS_FIRST and $(( PORTS_FIRST + PORTS_BLOCK * PORTS_BLOCKS - 1 ))"
}

# A node that comes back with its old ports claims them again; if another has them by now, the look at the ports tells.
keep_block() {
    CLAIMS=${TMPDIR:-/tmp}/push-gateway-ports-$(id -u)
    mkdir -p "$CLAIMS"
    ln -sn "$1" "$CLAIMS/$BLOCK" 2>/dev/null || true
}

release_block() { rm -f "${TMPDIR:-/tmp}/push-gateway-ports-$(id -u)/$1"; }

# True when the port answers the AMQP protocol header with a method frame (type 1, Connection.Start).
amqp_answers() {
    local first=
    { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return
    printf 'AMQP\0\0\11\1' >&3
    IFS= read -r -t 5 -n 1 first <&3 || true
    exec 3>&-
    [[ $first == $'\1' ]]
}

# True when the management API lists both exchanges, so the definitions are loaded. (Asked for one exchange alone,
# 3.10 answers 500 while statistics are off.) HTTP is spoken by hand: no curl needed.
exchanges_exist() {
    local line answer=
    { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null || return
    printf 'GET /api/exchanges/%%2F?columns=name HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Basic %s\r\n\r\n' \
        "$(printf 'admin:%s' "${BROKER_ADMIN_PASSWORD:-admin}" | base64)" >&3
    while IFS= read -r -t 5 line || [[ -n $line ]]; do answer+=$line; done <&3
    exec 3>&-
    HTTP_STATUS=${answer:0:12}
    [[ $answer == *'"exchange.control"'* && $answer == *'"exchange.direct"'* ]]
}
