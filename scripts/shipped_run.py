"""What a tracking server has of a run, as JSON: shipped_run.py SERVER RUN

For a trainer, with nothing but Python, and the authority and login that the role mlflow_server put there.
"""

import base64
import json
import ssl
import sys
import urllib.request

CLIENT = "/etc/stack-tracking-client"


class Server:
    def __init__(self, address: str) -> None:
        self.address = address
        with open(f"{CLIENT}/login", "rb") as login:
            self.login = base64.b64encode(login.readline().strip()).decode()
        self.trust = ssl.create_default_context(cafile=f"{CLIENT}/authority.pem")

    def ask(self, path, body=None):
        request = urllib.request.Request(
            f"{self.address}/api/2.0/mlflow/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Basic {self.login}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60, context=self.trust) as answer:
            return json.load(answer)


def tags(run):
    return {one["key"]: one["value"] for one in run["data"].get("tags", [])}


def main() -> None:
    server, name = Server(sys.argv[1]), sys.argv[2]
    experiments = server.ask("experiments/search?max_results=1000")["experiments"]
    wanted = {"experiment_ids": [one["experiment_id"] for one in experiments], "max_results": 1000}
    runs = server.ask("runs/search", wanted).get("runs", [])
    # The newest first, as MLflow sorts them.
    chain = next(
        r for r in runs if tags(r).get("stack.kind") == "reproduce" and r["info"]["run_name"] == name
    )
    below = [run for run in runs if tags(run).get("mlflow.parentRunId") == chain["info"]["run_id"]]
    train = next(run for run in below if tags(run).get("stack.kind") == "train")
    files = server.ask(f"artifacts/list?run_id={chain['info']['run_id']}").get("files", [])
    found = {
        "run_id": chain["info"]["run_id"],
        "status": chain["info"]["status"],
        "tags": tags(chain),
        "artifacts": sorted(file["path"] for file in files),
        "train": {one["key"]: one["value"] for one in train["data"].get("metrics", [])},
    }
    print(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
