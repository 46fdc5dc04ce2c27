# shellcheck shell=bash disable=SC2034 # variables are shared with scripts/broker
# The same node in a container, for machines with a container engine and no RabbitMQ. Its name stands for its pid.

container_alive() { [[ $(docker container inspect -f '{{.State.Running}}' "$PID" 2>/dev/null) == true ]]; }

container_spawn() {
    mkdir -p "$DIR"
    PID=push-gateway-$PORT NODE=rabbit@push-gateway EPMD_PORT='' EPMD_PID='' DIST_PORT=''
    # A container is kept until it is discarded; made anew it would get the same volume, so the data stay either way.
    if docker container inspect "$PID" >/dev/null 2>&1; then
        docker start "$PID" >/dev/null || die "the container $PID does not start: see 'docker logs $PID'"
    else
        docker run --detach --name "$PID" --hostname push-gateway --ulimit nofile=65536:65536 \
            --publish "127.0.0.1:$PORT:5672" --publish "127.0.0.1:$MANAGEMENT_PORT:15672" \
            --volume "$ROOT/rabbitmq.conf:/etc/rabbitmq/rabbitmq.conf:ro" \
            --volume "$ROOT/rabbit_definitions.json:/etc/rabbitmq/rabbit_definitions.json:ro" \
            --volume "$PID:/var/lib/rabbitmq" "$CONTAINER_IMAGE" >/dev/null ||
            die "the container $PID does not start: see the line above"
    fi
    save_state
}

container_ctl() { exec docker exec "$PID" rabbitmqctl "$@"; }
container_log() { docker logs --tail 5 "$PID" 2>&1; }
container_stop() {
    docker stop --time "$TIMEOUT" "$PID" >/dev/null
}
container_kill() { docker kill "$PID" >/dev/null; }
container_discard() {
    docker rm --force "$PID" >/dev/null 2>&1 || true
    docker volume rm "$PID" >/dev/null
}
