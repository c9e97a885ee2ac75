#!/usr/bin/env bash
# run.sh [--simulation | --deliver NAME,NAME [--rounds N]] RUN [SECTION.KEY=VALUE]...   On the server's machine: run the federation, with the results in RUN.
# Ends with status 0 when the run is complete. Repeat the command to continue an interrupted run.
# With --deliver NAME,NAME: wait for these silos and send them the model of the finished RUN. Silos that never took part
# join first, with N training rounds that they run alone.
# With --simulation all silos of config.toml are processes on this machine.
set -euo pipefail
cd "$(dirname "$0")"
. ./environment.sh
silos=@SILOS@ link=deploy options=()
usage() {
    echo "usage: run.sh [--simulation | --deliver NAME,NAME [--rounds N]] RUN [SECTION.KEY=VALUE]..." >&2
    exit 2
}
simulation=false deliver= rounds=
while [[ ${1-} == --* ]]; do
    case $1 in
        --simulation) simulation=true ;;
        --deliver) (($# > 1)) || usage; deliver=$2; shift ;;
        --rounds) (($# > 1)) || usage; rounds=$2; shift ;;
        *) usage ;;
    esac
    shift
done
(($#)) || usage
temporary=$(mktemp -d "${TMPDIR:-/tmp}/federation.XXXXXX")
superlink=
clean() {
    [[ -z $superlink ]] || { kill "$superlink" 2>/dev/null; wait "$superlink"; } || true
    rm -rf "$temporary"
}
trap clean EXIT
trap 'exit 130' INT TERM

simulate() {  # a server for this run only
    [[ $silos != none ]] || { echo 'data.source = "on_site" has no data to simulate with' >&2; exit 2; }
    local port
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    export FLWR_HOME="$temporary/flower" RAY_TMPDIR="$temporary"
    mkdir -p "$FLWR_HOME" .flower
    printf '[superlink.simulation]\naddress = "127.0.0.1:%s"\ninsecure = true\n' "$port" >"$FLWR_HOME/config.toml"
    flower-superlink --simulation --insecure --disable-runtime-dependency-installation --port "$port" \
        >.flower/simulation.log 2>&1 &
    superlink=$! link=simulation
    until python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do
        kill -0 "$superlink" 2>/dev/null || { cat .flower/simulation.log >&2; exit 1; }
        sleep 0.5
    done
    options=(--federation-config "num-supernodes=$silos client-resources-num-cpus=1")
}
if $simulation; then simulate; fi

# field NAME: read a field of Flower's answer, or of the only run in it; empty if it is missing.
field() { python3 -c '
import json, sys
name, text = sys.argv[1], sys.stdin.read()
try:
    answer = json.loads(text[text.index("{"):])
except ValueError:
    answer = {}
print(answer.get(name) or (answer.get("runs") or [{}])[0].get(name) or "")' "$1"; }

# gone ANSWER: print why Flower's command failed.
gone() {
    local why
    why=$(field error-message <<<"$1")
    case $why in
        *"connection '$link' not found"*)
            echo "this project's server has not been started yet: start ./server.sh on this machine first" >&2 ;;
        *"is unavailable"*) echo "the server does not answer: start ./server.sh on this machine" >&2 ;;
        "") echo "unexpected answer of the server: $1" >&2 ;;
        *) echo "${why##*$'\n'}" >&2 ;;
    esac
    exit 1
}

python3 -c 'import json, sys
_, deliver, rounds, run, *sets = sys.argv
found = {"run": run, "set": ";".join(sets), "deliver": deliver, "rounds": rounds}
for key, value in found.items():
    if value or key in ("run", "set"):
        print(key, "=", json.dumps(value, ensure_ascii=False))' "$deliver" "$rounds" "$@" >"$temporary/settings.toml"
# The server's messages about the run are in a file next to its folder; new ones are shown.
log=$(dirname "$1")/.$(basename "$1").log
shown=0
lines() { { cat "$log" 2>/dev/null || true; } | wc -l; }
show() {
    local now
    now=$(lines)
    ((now <= shown)) || sed -n "$((shown + 1)),${now}p" "$log"
    shown=$now
}
# why_not: explain a failed run. If its own log has the reason, it was shown; otherwise show Flower's log.
why_not() {
    if tail -n +"$((began + 1))" "$log" 2>/dev/null | grep ' the run has failed: ' >/dev/null; then
        echo "the reason is above, and in $log; for details: . ./environment.sh; flwr log $id $link --show" >&2
    else
        flwr log "$id" "$link" --show >&2 || true
    fi
}
shown=$(lines) began=$shown
answer=$(flwr run . "$link" --run-config "$temporary/settings.toml" "${options[@]}" --format json) || gone "$answer"
id=$(field run-id <<<"$answer")
[[ -n $id ]] || gone "$answer"
last=
while true; do
    answer=$(flwr ls "$link" --run-id "$id" --format json) || answer=
    status=$(field status <<<"$answer")
    show
    if [[ -z $status ]]; then
        echo "run $id: the server no longer answers; start ./server.sh, then repeat the command to continue the run" >&2
        exit 1
    fi
    [[ $status == "$last" ]] || echo "run $id: $status"
    last=$status
    case $status in
        finished:completed) exit 0 ;;
        finished:stopped) echo "run $id was stopped; repeat the command to continue it" >&2; exit 1 ;;
        finished:*) why_not; exit 1 ;;
    esac
    sleep 3
done
