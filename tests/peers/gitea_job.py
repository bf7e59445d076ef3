"""Adds a running job to the database of a Gitea that nobody uses yet, and prints the token that Gitea's runner would
give it.

usage: python gitea_job.py DATABASE SECRET
"""

import base64
import hashlib
import hmac
import json
import sqlite3
import sys
import time

RUN, ATTEMPT, JOB, TASK, RUNNING = 7, 70, 8, 9, 6

database = sqlite3.connect(sys.argv[1], timeout=30)
now = int(time.time())


def add(table, **given):
    """Adds a row. What Gitea doesn't let be null is empty, in whatever version."""
    values = {}
    for _, name, kind, not_null, default, _ in database.execute(f"pragma table_info(`{table}`)"):
        if name in given:
            values[name] = given[name]
        elif not_null and default is None:
            values[name] = "" if "TEXT" in kind.upper() else 0
    names = ", ".join(f"`{name}`" for name in values)
    marks = ", ".join("?" * len(values))
    database.execute(f"insert into `{table}` ({names}) values ({marks})", list(values.values()))


about = {"repo_id": 1, "owner_id": 1, "status": RUNNING, "created": now, "updated": now}
add("action_run", id=RUN, title="build", index=1, **about)
if database.execute("select 1 from sqlite_master where name = 'action_run_attempt'").fetchone():
    add("action_run_attempt", id=ATTEMPT, run_id=RUN, attempt=1, status=RUNNING)
add("action_run_job", id=JOB, run_id=RUN, run_attempt_id=ATTEMPT, name="build", job_id="build", attempt=1, task_id=TASK,
    **about)
add("action_task", id=TASK, job_id=JOB, attempt=1, runner_id=1, token_hash="hash", **about)
database.commit()


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")


claims = {"nbf": now - 60, "exp": now + 3600, "scp": f"Actions.Results:{RUN}:{JOB}", "ac": "[]", "TaskID": TASK,
          "RunID": RUN, "JobID": JOB}
message = encoded(b'{"alg": "HS256", "typ": "JWT"}') + b"." + encoded(json.dumps(claims).encode())
secret = base64.urlsafe_b64decode(sys.argv[2] + "=")
print((message + b"." + encoded(hmac.digest(secret, message, hashlib.sha256))).decode())
