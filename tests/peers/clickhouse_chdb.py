"""Serves a modern ClickHouse, the engine of the PyPI package chdb, over its own HTTP interface.

usage: clickhouse_chdb.py FOLDER PORT

Prints a line once it listens. As much of the interface as a client of tables needs: the query as
a parameter or in front of the body, `database`, `param_NAME`, gzip, errors as a status with text.
"""

import gzip
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from chdb.session import Session

session = Session(sys.argv[1])
lock = threading.Lock()
SETTINGS = {"wait_end_of_query", "max_execution_time", "query", "database"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        query = given.get("query", "")
        if body:
            query += "\n" + body.decode()
        values = {name[6:]: text for name, text in given.items() if name.startswith("param_")}
        with lock:
            try:
                for name, text in given.items():
                    if name not in SETTINGS and not name.startswith("param_"):
                        session.query(f"SET {name} = {int(text)}")
                session.query(f"USE {given.get('database', 'default')}")
                answer = session.query(query, "TabSeparated", params=values).bytes()
                status = 200
            except Exception as error:
                answer, status = str(error).encode(), 500
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print("listening", flush=True)
server.serve_forever()
