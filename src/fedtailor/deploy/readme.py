"""The README of a federation's folder: the exact commands to start its server, its sites and its run."""

from __future__ import annotations

from fedtailor.experiment.config import Config

QUIET = "export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2"

LINK = "flower-superlink {how} --host 0.0.0.0 --port {port} --disable-runtime-dependency-installation"
LINK_TLS = (
    "--ssl-ca-certfile keys/ca.crt --ssl-certfile keys/server.crt --ssl-keyfile keys/server.key --enable-supernode-auth"
)
SITE = "flower-supernode {how} --superlink {host}:{port} --node-config site.toml"
SITE_TLS = "--root-certificates ca.crt --auth-supernode-private-key node.key"


def readme(config: Config, host: str, port: int, *, tls: bool) -> str:
    sites = config.settings.clients
    link = LINK.format(how=LINK_TLS if tls else "--insecure", port=port)
    site = SITE.format(how=SITE_TLS if tls else "--insecure", host=host, port=port)
    parts = [TITLE.format(method=config.method.name, sites=sites), SERVER.format(quiet=QUIET, link=link)]
    if tls:
        keys = "\n".join(f"flwr supernode register keys/node-{i}.pub federation" for i in range(sites))
        parts.append(REGISTER.format(keys=keys))
    data = OWN_DATA if config.data.name == "sites" else ""
    key = " It holds the site's private key: send it over a safe channel, and delete it here." if tls else ""
    parts.append(SITES.format(quiet=QUIET, site=site, last=sites - 1, data=data, key=key))
    parts.append(RUN)
    return "\n".join(parts)


TITLE = """\
# A federation of {sites} sites that runs {method}

All machines need Python 3.11 and the same version of FedTailor with Flower: `pip install 'fedtailor[flower]'`.
What the federation does is in `app/pyproject.toml`, below `[tool.flwr.app.config]`.
"""

SERVER = """\
## The server

In this folder:

```sh
{quiet}
export FLWR_HOME="$PWD/flower"
{link}
```
"""

REGISTER = """\
Then, in a second terminal with the same two `export` lines, admit the sites by their keys:

```sh
{keys}
```

`keys/ca.key` makes certificates that every site trusts: keep it to yourself.
"""

SITES = """\
## Each site

Take the folder `sites/0` to the machine of site 0, and so on to `sites/{last}`.{key}{data}
In that folder, on that machine:

```sh
{quiet}
export FLWR_HOME="$PWD/flower"
{site}
```

The site keeps its private state in `state/` and its personal model in `models/`, both in its folder. Sites on one machine each need a
port of their own: add `--port 9095` and so on.
"""

OWN_DATA = " Name its data in `site.toml`."

RUN = """\
## The run

On the server, in a second terminal with the same two `export` lines:

```sh
flwr run app federation --stream
```

It waits for all sites, then goes round by round. `run/` is an ordinary run folder: `fedtailor show run`, `fedtailor report run`. After an
interruption the same command carries on from the last checkpoint.

## A new site, after the run

It needs a folder with a `site.toml` that names its data and has no `client` (and, with keys, a registered key). It starts its node like
the others, and the server welcomes it:

```sh
flwr run app federation --stream --run-config 'work="welcome"'
```
"""
