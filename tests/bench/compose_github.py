"""What a relay asks GitHub for at its start, on 127.0.0.1:9999, for compose.sh."""

import base64
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import json

UPSTREAM = {
    "id": 7, "name": "pytorch", "full_name": "pytorch/pytorch", "private": False, "default_branch": "main",
    "owner": {"id": 1, "login": "pytorch"},
}
KEY = {"kty": "RSA", "kid": "1", "alg": "RS256", "use": "sig", "e": "AQAB"}
KEY["n"] = base64.urlsafe_b64encode(b"\xc5" * 256).decode().rstrip("=")
TOKEN = {"token": "ghs_1", "expires_at": "2099-01-01T00:00:00Z", "repositories": [UPSTREAM]}
TOKEN["permissions"] = {"contents": "write"}
# By the end of the path.
ANSWERS = {
    "/jwks": {"keys": [KEY]},
    "/installation": {"id": 1, "account": UPSTREAM["owner"], "permissions": {}, "events": [], "suspended_at": None},
    "/allowlist.yml": b"L1: [acme/one]\n",
    "/access_tokens": TOKEN,
    "/deliveries": [],
    "/pulls": [],
    "/crcr-demotion/": [],
    "/repos/pytorch/pytorch": UPSTREAM,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        found = next((answer for end, answer in ANSWERS.items() if path.endswith(end)), None)
        status = 404 if found is None else 201 if self.command == "POST" else 200
        body = found if isinstance(found, bytes) else json.dumps({"message": "Not Found"} if found is None else found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET


ThreadingHTTPServer(("127.0.0.1", 9999), Handler).serve_forever()
