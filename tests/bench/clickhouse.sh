# Sourced: starts ClickHouse (`chdb`) with its data in the folder $1, on port 18923, and sets `clickhouse_server` to its
# process and `clickhouse_url` to its address.
clickhouse_url=http://127.0.0.1:18923
python3 tests/peers/clickhouse_chdb.py "$1/data" "${clickhouse_url##*:}" >/dev/null 2>&1 &
clickhouse_server=$!
until (: <"/dev/tcp/127.0.0.1/${clickhouse_url##*:}") 2>/dev/null; do sleep 0.2; done
