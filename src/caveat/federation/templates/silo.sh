#!/usr/bin/env bash
# silo.sh SILO.toml KEY SERVER:PORT   On the silo's machine: work for the federation until stopped.
# Needs certificates/ca.crt from the server, and the server has to know KEY.pub. The silo signs with KEY who it is.
set -euo pipefail
umask 077
(($# == 3)) || { echo "usage: silo.sh SILO.toml KEY SERVER:PORT" >&2; exit 2; }
silo=$(realpath "$1") key=$(realpath "$2") server=$3
cd "$(dirname "$0")"
. ./environment.sh
name=$(basename "$key")
export FLWR_HOME="$FEDERATION/.flower/$name"
mkdir -p "$FLWR_HOME"
chmod 700 "$FLWR_HOME"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# Whatever a SuperNode has started ends with it: after a crash of the server, Flower leaves a waiting process behind.
set -m
group=
end() { [[ -z $group ]] || kill -"$1" -- "-$group" 2>/dev/null || true; }
trap 'trap - INT TERM; end TERM; wait; end KILL; exit 0' INT TERM
# Flower refuses the same key for up to a minute after a crash, and ends well when the server restarts: try again.
while true; do
    flower-supernode --superlink "$server" --root-certificates certificates/ca.crt --auth-supernode-private-key "$key" \
        --port "$port" --node-config "silo=\"$silo\" key=\"$key\"" &
    group=$! status=0
    wait "$group" || status=$?
    end KILL
    echo "$name: ended with status $status; again in 10 s" >&2
    sleep 10 &
    group=$!
    wait "$group"
done
