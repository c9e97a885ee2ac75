#!/usr/bin/env bash
# key.sh NAME   On the silo's machine: make the silo's key; NAME is the silo's name in silo.toml.
# The server needs the public half.
set -euo pipefail
cd "$(dirname "$0")"
(($# == 1)) && [[ $1 != -* ]] || { echo "usage: key.sh NAME" >&2; exit 2; }
umask 077
mkdir -p keys
chmod 700 keys
[[ ! -e keys/$1 ]] || { echo "keys/$1 exists" >&2; exit 2; }
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$1" -f "keys/$1"
echo "copy keys/$1.pub to the server; keys/$1 stays here"
echo "fingerprint, which others compare with their logs: $(ssh-keygen -lf "keys/$1.pub" | cut -d " " -f 2)"
