#!/usr/bin/env bash
# certificates.sh HOSTNAME|IP...   On the server's machine: make the server's certificate, for the names that silos use.
# The authority that signs it is made once; a second call renews the server's certificate with the same authority.
set -euo pipefail
cd "$(dirname "$0")"
(($#)) && [[ $1 != -* ]] || { echo "usage: certificates.sh HOSTNAME|IP..." >&2; exit 2; }
umask 077
mkdir -p certificates
cd certificates

names="DNS:localhost,IP:127.0.0.1"
for name in "$@"; do
    if [[ $name =~ ^[0-9.]+$ || $name == *:* ]]; then names+=",IP:$name"; else names+=",DNS:$name"; fi
done
new_key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out "$1"; }

if [[ ! -e ca.key ]]; then
    new_key ca.key
    openssl req -x509 -new -key ca.key -sha384 -days 3650 -subj "/CN=federation" -out ca.crt \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
fi
new_key server.key
openssl req -new -key server.key -subj "/CN=$1" -out server.csr
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -sha384 -days 825 -out server.pem -extfile <(
    printf '%s\n' "subjectAltName=$names" "basicConstraints=CA:FALSE" "keyUsage=digitalSignature" "extendedKeyUsage=serverAuth"
) 2>/dev/null
rm server.csr
openssl verify -CAfile ca.crt server.pem >/dev/null
chmod 600 ca.key server.key
chmod 644 ca.crt server.pem
echo "copy certificates/ca.crt to every silo; the keys stay here. The certificate is for $names"
