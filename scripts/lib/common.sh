# shellcheck shell=bash
# Small things that every script here needs.

die() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit "${2:-1}"; }
say() { printf '%s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Milliseconds since 1970. (macOS still ships a bash without EPOCHREALTIME: whole seconds then.)
now() {
    local t=${EPOCHREALTIME:-$(date +%s).0}
    t=${t/,/.}
    local fraction=${t#*.}000
    printf '%s%s' "${t%.*}" "${fraction:0:3}"
}
since() {
    local ms=$(( $(now) - $1 ))
    printf '%d.%d s' $(( ms / 1000 )) $(( ms % 1000 / 100 ))
}

# rustup's own place for cargo is often missing from the PATH of a script.
find_cargo() {
    have cargo && return
    local bin="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
    if [[ -x $bin/cargo ]]; then PATH="$bin:$PATH"; export PATH; return; fi
    die "cargo is missing: install Rust from https://rustup.rs and try again"
}

# The cryptography library brings C and assembler code along.
find_compiler() {
    have cc && have make && return
    if have apt-get && can_be_root; then apt_install gcc libc6-dev make && return; fi
    die "a C compiler (cc) or make is missing: install gcc or clang, and make, and try again"
}

# libFuzzer is C++; nothing else here is.
find_cxx_compiler() {
    have c++ && return
    if have apt-get && can_be_root; then apt_install g++ && return; fi
    die "a C++ compiler (c++) is missing: install g++ or clang and try again"
}

# Where cargo puts what it builds, whatever the user's configuration says.
target_directory() {
    cargo metadata --format-version 1 --no-deps --locked | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

wait_for() { # seconds command …: polls until the command succeeds
    local deadline=$(( $(now) + $1 * 1000 ))
    shift
    until "$@"; do
        (( $(now) < deadline )) || return 1
        sleep 0.05
    done
}

as_root() { if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi; }
can_be_root() {
    [[ $(id -u) == 0 ]] && return
    have sudo || return
    sudo -n true 2>/dev/null || [[ -t 0 && -t 2 ]]
}

apt_install() { # package …
    say "installing with apt: $*"
    local quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o=Dpkg::Use-Pty=0)
    as_root "${quiet[@]}" install -y --no-install-recommends "$@" >/dev/null 2>&1 && return
    # The usual reason is a package list that is absent or old.
    as_root "${quiet[@]}" update >&2 && as_root "${quiet[@]}" install -y --no-install-recommends "$@" >&2
}
