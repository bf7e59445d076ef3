"""Checks the relay's OpenAPI document, and each answer of its JSON addresses against the schema there.

usage: openapi_twins.py JSON, with `sites` (addresses of relays) and `asked` (templates of paths, with addresses)
"""

import json
import sys
import urllib.error
import urllib.request

from jsonschema import Draft202012Validator, FormatChecker
from openapi_spec_validator import validate


def fetch(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def main():
    given = json.loads(sys.argv[1])
    sites, asked = given["sites"], given["asked"]
    _, document = fetch(f"{sites['full']}/api/v1/openapi.json")
    validate(document)
    twins = [path for path, operations in document["paths"].items() if "get" in operations]
    problems = [f"{path} isn't asked for" for path in twins if path not in asked]
    checked = 0
    for path, addresses in asked.items():
        responses = document["paths"][path]["get"]["responses"]
        for address in addresses:
            for name, site in sites.items():
                status, body = fetch(site + address)
                if name == "full" and status != 200:
                    problems.append(f"{address}: {status} {body}")
                response = responses[str(status)]
                reference = response.get("$ref", "").rpartition("/")[2]
                response = document["components"]["responses"].get(reference, response)
                schema = response["content"]["application/json"]["schema"]
                whole = {**schema, "components": document["components"]}
                checker = Draft202012Validator(whole, format_checker=FormatChecker())
                for error in list(checker.iter_errors(body))[:3]:
                    problems.append(f"{name}{address}: {error.json_path}: {error.message[:300]}")
                checked += status == 200
    print("\n".join(problems))
    print(f"{checked} answers were checked", file=sys.stderr)
    sys.exit(1 if problems or checked < 2 * len(asked) else 0)


main()
