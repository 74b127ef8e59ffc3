"""The README of a federation's folder: how to start its server and its sites."""

from __future__ import annotations

from fedtailor.experiment.config import Config


def readme(config: Config, host: str, port: int) -> str:
    sites = config.settings.clients
    data = OWN_DATA if config.data.name == "sites" else SHARED_DATA.format(data=config.data.name)
    return TEXT.format(method=config.method.name, sites=sites, last=sites - 1, host=host, port=port, data=data)


TEXT = """\
# A federation of {sites} sites that runs {method}

All machines need Python 3.11 and the same version of FedTailor with Flower: `pip install 'fedtailor[flower]'`.
What the federation does is in `federation.toml`.

## The server

On the server's machine:

```sh
fedtailor deploy serve .
```

It listens on port {port}, waits for all sites, and goes round by round. `run/` is an ordinary run folder: `fedtailor show run`,
`fedtailor report run`. After an interruption the same command resumes from the last checkpoint. Only sites whose certificates are in
`keys/` can talk to it, so only that port has to be open, and only to them:

```sh
iptables -A INPUT -p tcp --dport {port} -s ADDRESS-OF-A-SITE -j ACCEPT     # once for each site
iptables -A INPUT -p tcp --dport {port} -j DROP
```

`keys/ca.key` and `keys/server.key` are secrets of the server: whoever has `ca.key` can admit sites of their own.

## Each site

Take the folder `sites/0` to the machine of site 0, and so on to `sites/{last}`. It holds the site's private key: send it over a safe
channel, and delete it here. {data} The table `[policy]` says what the site agrees to. On the site's machine, in that folder:

```sh
fedtailor deploy site .
```

The site opens no port: it asks the server at {host}:{port} for work. It keeps its private state in `state/` and its personal model in
`models/`, both in its folder, and ends when the run is finished.

## A new site, after the run

```sh
fedtailor deploy admit . NAME      # at the server: makes sites/NAME, to be taken to the new site, where it is started like the others
fedtailor deploy welcome .         # at the server, once the new site is running: gives it its personal model
```
"""

OWN_DATA = "Each site names its data in `site.toml`."
SHARED_DATA = "Its data is its part of {data}, which all sites have."
