#!/usr/bin/env bash
# admit.sh NAME.pub   On the server's machine, while server.sh runs: let the silo in that has this key, and bind NAME to
# it, the silo's name in its silo.toml. For a key in place of a lost one the same: it takes the place of the former.
set -euo pipefail
(($# == 1)) && [[ $1 == *.pub ]] || { echo "usage: admit.sh NAME.pub" >&2; exit 2; }
key=$(realpath "$1")
cd "$(dirname "$0")"
. ./environment.sh
mkdir -p silos
place=silos/$(basename "$key")
cmp -s "$key" "$place" || cp "$key" "$place"
chmod 644 "$place"
flwr supernode register "$place" deploy
