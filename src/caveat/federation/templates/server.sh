#!/usr/bin/env bash
# server.sh [HOST [PORT]]   On the server's machine: listen on HOST and PORT (default: 127.0.0.1 8000) until stopped.
# Registered silos are kept in .flower/server, also after a restart.
set -euo pipefail
cd "$(dirname "$0")"
. ./environment.sh
host=${1:-127.0.0.1} port=${2:-8000}

mkdir -p .flower  # nginx may need it as another user
umask 077
mkdir -p .flower/server
chmod 700 .flower/server
cat >.flower/config.toml <<END
[superlink]
default = "deploy"

[superlink.deploy]
address = "127.0.0.1:$port"
root-certificates = "$FEDERATION/certificates/ca.crt"
END

export FLWR_HOME="$FEDERATION/.flower/server"
exec flower-superlink --host "$host" --port "$port" --enable-supernode-auth --disable-runtime-dependency-installation \
    --ssl-certfile certificates/server.pem --ssl-keyfile certificates/server.key --ssl-ca-certfile certificates/ca.crt \
    --database "$FLWR_HOME/state.db"
