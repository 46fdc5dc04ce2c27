# Starts a broker and ends it with its owner, however the owner ends: a destructor does not run for a static, nor after
# SIGKILL. It runs in a process group of its own, so that a signal to the tests is not one to it.
#
# $1 scripts/broker   $2 directory of the node   $3 process to outlive; empty: whoever holds the other end of stdin
"$1" start --port auto --dir "$2" --print-env 2>&1 || exit 1
echo ready
exec >/dev/null 2>&1
if [ -n "$3" ]; then
    while kill -0 "$3"; do sleep 1; done
else
    cat
fi
# Killed, not stopped: nobody needs its data, and an orderly stop takes seconds.
"$1" discard --dir "$2"
rm -rf "$2" "$2.lock"
