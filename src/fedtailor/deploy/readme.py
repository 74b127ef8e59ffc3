"""The README of a federation's folder: how to start its server and its sites."""

from __future__ import annotations

from fedtailor.experiment.config import Config


def readme(config: Config, host: str, port: int, described: bool = False) -> str:
    sites = config.settings.clients
    data = OWN_DATA if config.data.name == "sites" else SHARED_DATA.format(data=config.data.name)
    meaning = "" if config.data.name != "sites" else DESCRIBED if described else NOT_DESCRIBED
    return TEXT.format(
        method=config.method.name, sites=sites, last=sites - 1, host=host, port=port, data=data, meaning=meaning
    )


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

The site opens no port: it asks the server at {host}:{port} for work. It keeps its private state in `state/`, its personal model in
`models/` and how its data is read in `description.json`, all in its folder, and ends when the run is finished.

{meaning}## A new site, after the run

```sh
fedtailor deploy admit . NAME      # at the server: makes sites/NAME, to be taken to the new site, where it is started like the others
fedtailor deploy welcome .         # at the server, once the new site is running: gives it its personal model
```
"""

OWN_DATA = "Each site names its data in `site.toml`."
NOT_DESCRIBED = """\
## The same meaning at every site

Before the first round the sites' data is compared by name: columns, their kinds, the values of categories, labels. What a site may
disclose for that is in its policy, `may_describe`. If sites differ, the server says how and stops. Then:

```sh
fedtailor deploy describe .        # at the server: merges what the sites disclosed into description.json, to be checked and edited
fedtailor deploy serve .           # uses it
```

A site that wants to check that file first puts a copy into its folder and adds `description = "description.json"` to the top of its
`site.toml`. It then accepts no other, and may set `may_describe = []`.

"""
DESCRIBED = """\
## The same meaning at every site

`description.json`, here and in the folder of each site, says what columns, categories, numbers and labels mean. Each site checks its
data against its own copy, accepts no other from the server, and discloses only that its data fits and its numbers of samples.
To change it, change all copies.

"""
SHARED_DATA = "Its data is its part of {data}, which all sites have."
