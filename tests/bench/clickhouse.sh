# Sourced: starts Debian's ClickHouse with its data in the folder $1, on port 18923, and sets
# `clickhouse_server` to its process and `clickhouse_url` to its address.
clickhouse_url=http://127.0.0.1:18923
cat >"$1/config.xml" <<XML
<yandex><logger><level>warning</level><console>1</console></logger>
<listen_host>127.0.0.1</listen_host><http_port>${clickhouse_url##*:}</http_port><path>./data/</path>
<tmp_path>./tmp/</tmp_path><users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>67108864</mark_cache_size></yandex>
XML
cat >"$1/users.xml" <<'XML'
<yandex><profiles><default></default></profiles><users><default><password></password>
<networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
</default></users><quotas><default></default></quotas></yandex>
XML
(cd "$1" && exec clickhouse-server --config-file=config.xml >/dev/null 2>&1) &
clickhouse_server=$!
until (: <"/dev/tcp/127.0.0.1/${clickhouse_url##*:}") 2>/dev/null; do sleep 0.2; done
