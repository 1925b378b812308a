#!/bin/sh
# Start all roles of a deployment on this machine, from the root of a checkout: sh deploy/hosts/docker/one-machine.sh
#
# It shows only that the images' files fit together. It builds both images, makes every key at one authority, and gives
# each service its own (docs/guides/runbook.md, "On one machine").
set -eu

docker build -f deploy/hosts/docker/Dockerfile --target server -t precad-server:0.1.0 .
docker build -f deploy/hosts/docker/Dockerfile --target full -t precad:0.1.0 .
precad init deployment start
precad pki init authority
for server in aggregator-a aggregator-b dealer; do
  precad pki issue authority --role $server
  openssl rand -base64 32 > authority/$server/operations-token
done
for client in hospital-1 hospital-2 hospital-3; do
  precad pki issue authority --role client --name $client
  install -D start/client/records.csv authority/$client/records/$client.csv
done
precad initial-model start/aggregator-a/aggregator-a.toml authority/initial.npy
cd start/one-machine
mkdir site
cp -r ../../authority/*/ ../../authority/ca.pem ../../authority/initial.npy site/
sudo chown -R 10001:10001 site
sudo sh -c 'chmod 0400 site/*/key.pem site/*/operations-token'
docker compose up
