#!/usr/bin/env bash
# How fast every page answers over a million attempts and a million webhooks, on SQLite and on Debian's
# ClickHouse.
# usage: tests/bench/hud_speed.sh [ATTEMPTS] [DAYS] [WEBHOOKS]
set -euo pipefail
cd "$(dirname "$0")/../.."
attempts=${1:-1000000} days=${2:-400} webhooks=${3:-1000000}
hud_speed() { cargo bench -q --workspace --bench hud_speed -- "$@"; }
folder=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server"; rm -rf "$folder"' EXIT

echo "SQLite:"
hud_speed "sqlite:$folder/results.db" "$attempts" "$days" "$webhooks"

port=18923
cat >"$folder/config.xml" <<XML
<yandex><logger><level>warning</level><console>1</console></logger>
<listen_host>127.0.0.1</listen_host><http_port>$port</http_port><path>./data/</path>
<tmp_path>./tmp/</tmp_path><users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>67108864</mark_cache_size></yandex>
XML
cat >"$folder/users.xml" <<'XML'
<yandex><profiles><default></default></profiles><users><default><password></password>
<networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
</default></users><quotas><default></default></quotas></yandex>
XML
(cd "$folder" && exec clickhouse-server --config-file=config.xml >/dev/null 2>&1) &
server=$!
until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.2; done
echo "ClickHouse $(curl -s "http://127.0.0.1:$port/?query=SELECT+version()"):"
hud_speed "clickhouse+http://127.0.0.1:$port/crcr" "$attempts" "$days" "$webhooks"
