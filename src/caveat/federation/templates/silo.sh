#!/usr/bin/env bash
# silo.sh SILO.toml KEY SERVER:PORT   On the silo's machine: take part in the federation until stopped.
# Needs certificates/ca.crt from the server, and KEY.pub registered there. The silo signs its greetings with KEY.
# Mistakes are reported before anything is started, with status 2.
set -euo pipefail
umask 077
(($# == 3)) || { echo "usage: silo.sh SILO.toml KEY SERVER:PORT" >&2; exit 2; }
[[ -f $1 ]] || { echo "$1: no such file; expected the silo's own copy of silo.toml" >&2; exit 2; }
[[ -f $2 ]] || { echo "$2: no such file; expected the silo's private key, which ./key.sh NAME makes" >&2; exit 2; }
silo=$(realpath "$1") key=$(realpath "$2") server=$3
cd "$(dirname "$0")"
. ./environment.sh
name=$(basename "$key")
command=$(command -v flwr-clientapp) || {
    echo 'flwr-clientapp is not on the path: activate the environment with caveat[flower] in it' >&2
    exit 1
}
python3 -P -m caveat.federation.silo.start_checks "$silo" "$key" "$server" || exit 2
export FLWR_HOME="$FEDERATION/.flower/$name"
mkdir -p "$FLWR_HOME"
chmod 700 "$FLWR_HOME"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# Flower starts a process for each message. The first command on its path passes the message to the silo's daemon, which
# imports torch once, and starts and ends with the node.
own=$(python3 -c 'import caveat; print(*caveat.__path__)')/federation/silo
mkdir -p "$FLWR_HOME/bin"
printf '#!/bin/sh\nexec %q -IS %q %q %q "$@"\n' "$(command -v python3)" "$own/forward_message.py" "$FLWR_HOME" "$command" \
    >"$FLWR_HOME/bin/flwr-clientapp"
chmod 700 "$FLWR_HOME/bin/flwr-clientapp"
attend() {
    while kill -0 "$1" 2>/dev/null; do
        python3 -P -m caveat.federation.silo.fork_server "$FLWR_HOME" "$1" || true
        sleep 5  # meanwhile messages take longer
    done
}

# heard: print a SuperNode's messages, and record whether the server has accepted or refused it.
heard() {
    trap '' INT TERM
    while IFS= read -r line; do
        printf '%s\n' "$line"
        case $line in
            *"SuperNode ID: "*) : >"$FLWR_HOME/let-in" ;;
            *"code: 2004"*) : >"$FLWR_HOME/refused" ;;
        esac
    done
}

# why: print why the server refused the key; Flower's message is the same for both reasons. A record
# that is older than the key belongs to an earlier key of that name.
why() {
    if [[ $FLWR_HOME/let-in -nt $key ]]; then
        echo "the server knows this key, and considers its last node connected until a minute has passed; if this" \
            "lasts longer, the server has permanently excluded the key: remove $key and $key.pub, make another with" \
            "./key.sh $name, register it with ./admit.sh $name.pub at the server, and start silo.sh again"
    else
        echo "the server does not know this key: register it there with ./admit.sh $name.pub"
    fi
}

# All processes of a SuperNode end with it: after a crash of the server, Flower leaves a waiting process behind.
set -m
group=
end() { [[ -z $group ]] || kill -"$1" -- "-$group" 2>/dev/null || true; }
trap 'trap - INT TERM; end TERM; wait; end KILL; exit 0' INT TERM
# Flower refuses the same key for up to a minute after a crash, and exits when the server restarts: try again.
while true; do
    rm -f "$FLWR_HOME/refused"
    (
        PATH="$FLWR_HOME/bin:$PATH"
        node=$BASHPID  # which becomes the SuperNode
        attend "$node" &
        python3 -IS "$own/connection_check.py" "$node" "$name" "$server" certificates/ca.crt &
        exec flower-supernode --superlink "$server" --root-certificates certificates/ca.crt \
            --auth-supernode-private-key "$key" --port "$port" --node-config "silo=\"$silo\" key=\"$key\"" \
            > >(heard) 2>&1
    ) &
    group=$! status=0
    wait "$group" || status=$?
    sleep 0.2  # to read its last messages
    end KILL
    [[ ! -e $FLWR_HOME/refused ]] || echo "$name: $(why)" >&2
    echo "$name: exited with status $status; restarting in 10 s" >&2
    sleep 10 &
    group=$!
    wait "$group"
done
