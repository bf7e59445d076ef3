#!/usr/bin/env bash
# Follows the page of Compose (deploy/README.md) with a real engine, on a machine that reaches no registry of images: starts
# everything, makes a backup, upgrades and goes back, and kills Redis and the owner of the network. Takes two minutes.
#
# usage: tests/bench/compose.sh FOLDER [CRCR]     Needs root, Debian's packages, and what tests/setup installs.
#
# The engine runs in a network namespace of its own, with its data in FOLDER, where packages are unpacked and not installed.
# Images get the names of compose.yaml and are made of programs of this machine and of Debian: Redis, Caddy, Prometheus, and
# `chdb` for ClickHouse. In Grafana's place there is a container that does nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
folder=$(realpath -m "$1")
crcr=$(realpath "${2:-target/debug/crcr}")
tools=$root/target/tools/venv
mkdir -p "$folder/packages" "$folder/plugins/cli-plugins"
cd "$folder"
rm -rf made relay
export DOCKER_HOST=unix://$folder/docker.sock DOCKER_CONFIG=$folder/plugins DOCKER_BUILDKIT=0
ln -sf "$(readlink -f "$tools/bin/docker-compose")" plugins/cli-plugins/docker-compose

if [[ ! -x engine/usr/sbin/dockerd ]]; then
  (cd packages && apt-get download -qq docker.io containerd runc busybox-static prometheus)
  for package in packages/*.deb; do dpkg -x "$package" engine; done
fi
PATH=$folder/engine/usr/bin:$folder/engine/usr/sbin:$PATH
setsid unshare --net --mount --propagation slave bash -c "ip link set lo up && exec dockerd --data-root $folder/data \
  --exec-root $folder/run --pidfile $folder/pid --host $DOCKER_HOST --iptables=false --ip6tables=false --ip-forward=false" \
  >engine.log 2>&1 &
stop() {
  (cd "$folder/deploy" 2>/dev/null && docker compose down --volumes >/dev/null 2>&1) || true
  kill "${github:-}" 2>/dev/null || true
  kill "$(cat "$folder/pid")"
}
trap stop EXIT
until docker version >/dev/null 2>&1; do sleep 0.5; done

# add_libraries PROGRAM ROOT: copies what a program is linked to.
add_libraries() {
  local library
  { ldd "$1" 2>/dev/null || true; } | awk '/=> \//{print $3} /^\t\/lib64/{print $1}' | while read -r library; do
    mkdir -p "$2$(dirname "$library")"
    [[ -e $2$library ]] || cp -L "$library" "$2$library"
  done
}
# image NAME PROGRAM...: an image of busybox and programs with their libraries; what is in files/ comes along. The rest of
# its recipe is on standard input.
image() {
  local name=$1 program
  shift
  mkdir -p made/root/{bin,etc,tmp} made/files
  cp engine/bin/busybox made/root/bin/
  for program in sh grep wget sleep; do ln -sf busybox "made/root/bin/$program"; done
  printf 'root:x:0:0::/:/bin/sh\nredis:x:999:999::/data:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' >made/root/etc/passwd
  for program in "$@"; do
    [[ $program == *.so* ]] || cp -L "$program" made/root/bin/
    add_libraries "$program" made/root
  done
  { printf 'FROM scratch\nENV PATH=/bin\nCOPY root /\n'; cat; } >made/Dockerfile
  docker build --quiet --tag "$name" made
  rm -rf made
}
image registry.k8s.io/pause:3.10.1 <<<'ENTRYPOINT ["sleep", "100000"]'
docker tag registry.k8s.io/pause:3.10.1 grafana/grafana:12.1.1
mkdir -p made/data && touch made/data/.keep
image redis:8.2.1-bookworm "$(command -v redis-server)" "$(command -v redis-cli)" <<'END'
COPY --chown=999:999 data /data
WORKDIR /data
VOLUME /data
END
mkdir -p made/prometheus && touch made/prometheus/.keep
image prom/prometheus:v3.5.0 engine/usr/bin/prometheus <<'END'
COPY --chown=65534:65534 prometheus /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
END
image caddy:2.10.2-alpine "$tools/bin/caddy" <<'END'
ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
END
python=$(readlink -f "$tools/bin/python3")
library=$(dirname "$(dirname "$python")")/lib/$(basename "$python")
mkdir -p made/root/py/lib made/root/py/site
tar --create --directory "$(dirname "$library")" --exclude=site-packages --exclude=test --exclude='*.a' "$(basename "$library")" |
  tar --extract --directory made/root/py/lib
cp -r "$tools"/lib/python*/site-packages/chdb* made/root/py/site/
# A health check asks for /ping, and the database is there from the start.
python3 - "$root/tests/peers/clickhouse_chdb.py" made/root/py/serve.py <<'END'
import sys

text = open(sys.argv[1]).read()
ping = """    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def do_POST"""
text = text.replace("    def do_POST", ping, 1)
text = text.replace("lock =", 'session.query("CREATE DATABASE IF NOT EXISTS crcr")\nlock =', 1)
open(sys.argv[2], "w").write(text)
END
# shellcheck disable=SC2046
image clickhouse/clickhouse-server:25.8.2.29-alpine "$python" $(find made/root/py -name '*.so*') <<END
ENV PYTHONHOME=/py PYTHONPATH=/py/site HOME=/tmp
CMD ["$(basename "$python")", "/py/serve.py", "/var/lib/clickhouse/data", "8123"]
END
mkdir -p relay/image/amd64/{data,tmp,etc/ssl/certs}
cp "$crcr" relay/image/amd64/crcr
cp /etc/ssl/certs/ca-certificates.crt relay/image/amd64/etc/ssl/certs/
add_libraries "$crcr" relay/image/amd64
for version in 1.0.0 1.1.0; do
  docker build --quiet --build-arg TARGETARCH=amd64 --tag "ghcr.io/pytorch/crcr:$version" --file "$root/deploy/release.Dockerfile" relay
done

rm -rf deploy && cp -r "$root/deploy" deploy && cd deploy
cat >relay.env <<'END'
GITHUB_APP_ID=123456
ALLOWLIST_URL=https://github.com/pytorch/pytorch/blob/main/.github/allowlist.yml
UPSTREAM_REPO=pytorch/pytorch
CI_PROVIDERS_URL=off
GITHUB_API_URL=http://127.0.0.1:9999
END
mkdir -m 700 secrets
openssl rand -hex 24 >secrets/clickhouse_password
echo "clickhouse+http://crcr:$(cat secrets/clickhouse_password)@127.0.0.1:8123/crcr" >secrets/results
for name in admin_token github_app_secret grafana_password; do openssl rand -hex 32 >secrets/$name; done
openssl genrsa -traditional -out secrets/github_app_private_key.pem 2048 2>/dev/null
chmod 644 secrets/*
echo CRCR_DOMAIN=localhost >.env
# This machine may allow fewer open files.
printf 'services: { clickhouse: { ulimits: { nofile: %s } } }\n' "$(ulimit -Hn)" >compose.override.yaml

pid_of() { docker inspect --format '{{.State.Pid}}' "crcr-$1-1" 2>/dev/null; }
# GitHub, in the network that all share: what a relay asks for at its start.
serve_github() {
  kill "${github:-}" 2>/dev/null || true
  until [[ $(pid_of network) -gt 0 ]]; do sleep 0.2; done
  nsenter --target "$(pid_of network)" --net python3 "$root/tests/bench/compose_github.py" 2>/dev/null &
  github=$!
}
up() { docker compose --progress quiet up --detach --wait; }
health() { docker compose exec -T relay /crcr relay health || true; }
namespaces() { docker ps --quiet | xargs docker inspect --format '{{.State.Pid}}' | xargs -I{} readlink /proc/{}/ns/net | sort -u | wc -l; }

docker compose --progress quiet up --detach network
serve_github
up
echo "started: $(health)"
nsenter --target "$(pid_of network)" --net curl --silent --insecure --fail --output /dev/null https://localhost/readyz
echo "Caddy: answers"
install -d -o 999 -m 700 ../backups
rm -rf ../backups/now
docker compose run --rm --no-deps --user 999 --volume crcr_redis:/data:ro --volume "$PWD/../backups:/backups" \
  relay relay backup /backups/now
echo CRCR_VERSION=1.1.0 >>.env && up
echo "upgraded to $(docker compose ps relay --format '{{.Image}}'): $(health)"
sed -i /CRCR_VERSION/d .env && up
echo "back on $(docker compose ps relay --format '{{.Image}}'): $(health)"
kill -9 "$(pid_of redis)"
sleep 15
echo "Redis was killed: $(health)"
kill -9 "$(pid_of network)"
sleep 3 && up
echo "the network's owner was killed: $(namespaces) namespaces after \`up\`"
docker compose --progress quiet restart network
serve_github
up
echo "restarted: $(namespaces) namespace, $(health)"
