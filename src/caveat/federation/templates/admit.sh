#!/usr/bin/env bash
# admit.sh NAME.pub   On the server's machine, while server.sh runs: register a silo's key, and bind NAME
# to it, the silo's name in its silo.toml. A new key replaces a lost one in the same way.
# silos/NAME.node has the number of its Flower node. A key whose node was excluded cannot be registered again.
set -euo pipefail
(($# == 1)) && [[ $1 == *.pub ]] || { echo "usage: admit.sh NAME.pub" >&2; exit 2; }
[[ -f $1 ]] || { echo "$1: no such file; expected a silo's public key, made by key.sh at the silo" >&2; exit 2; }
key=$(realpath "$1")
cd "$(dirname "$0")"
. ./environment.sh
exec python3 -P -m caveat.federation.keys "$key"
