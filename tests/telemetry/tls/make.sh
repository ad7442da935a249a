#!/bin/sh -e
# Makes the test CA, a server certificate of it and one CA that signed nothing here. For tests on loopback only.
cd "$(dirname "$0")"
for ca in ca other-ca; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 -keyout "$ca.key" -out "$ca.pem" \
    -subj "/CN=extproc test $ca" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
done
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj "/CN=vllm.test"
printf '%s\n' 'subjectAltName=DNS:vllm.test,IP:127.0.0.1,IP:::1' 'basicConstraints=critical,CA:FALSE' \
  'subjectKeyIdentifier=hash' 'authorityKeyIdentifier=keyid' 'keyUsage=critical,digitalSignature' \
  'extendedKeyUsage=serverAuth' > server.ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -out server.pem -extfile server.ext
rm -f ./*.csr ./*.ext ./*.srl ca.key other-ca.key
