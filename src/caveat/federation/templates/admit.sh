#!/usr/bin/env bash
# admit.sh NAME.pub   On the server's machine, while server.sh runs: let the silo in that has this key, and bind NAME to
# it, the silo's name in its silo.toml. For a key in place of a lost one the same: it takes the place of the former.
# silos/NAME.node says which node of Flower's that is. A key whose node was excluded is not let in again.
set -euo pipefail
(($# == 1)) && [[ $1 == *.pub ]] || { echo "usage: admit.sh NAME.pub" >&2; exit 2; }
[[ -f $1 ]] || { echo "$1: no such file; expected a silo's public key, which key.sh makes there" >&2; exit 2; }
key=$(realpath "$1")
cd "$(dirname "$0")"
. ./environment.sh
exec python3 -P -m caveat.federation.keys "$key"
