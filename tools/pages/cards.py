"""Method cards: one page per registered method, from its class, its equations and what was measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedtailor.methods import Method, methods
from fedtailor.privacy.reveals import learnt
from fedtailor.registry import options
from fedtailor.report.sheets import escape_markdown
from tools.pages.evidence import Place, claimed, judged, natural
from tools.pages.text import code, option_table, paragraphs, table

EQUATIONS = Path(__file__).with_name("equations.toml")
FAMILIES = {
    "baseline": "Baselines",
    "fine-tuning": "Fine-tuning",
    "model splitting": "Model splitting",
    "regularized": "Regularized",
    "meta": "Meta-learning",
    "personalized aggregation": "Personalized aggregation",
    "prototypes": "Prototypes and statistics",
    "distillation": "Distillation",
}
NOTATION = r"""
- $w$ is a whole model; $\theta$ its body, which maps a sample $x$ to features $z = \theta(x)$ in $d$ dimensions; $\varphi$ its head, the
  last layer, so that $w = (\theta, \varphi)$ and its outputs are $f_w(x) = \varphi(\theta(x))$.
- Symbols without index are the server's, those with index $i$ belong to client $i$. Personal models are often called $v_i$.
- $\ell_i(w)$ is the mean loss of the task (for classes the cross-entropy, CE) over a batch of client $i$'s training samples. A gradient
  step is taken for each batch; $\eta$ is the learning rate `lr`. With another `optimizer`, its steps take the place of SGD's.
- $S_t$ are the clients that take part in round $t$ of $T$; client $i$ has $n_i$ training samples, $n_{i,c}$ of class $c$; and
  $p_i = n_i / \sum_{j \in S_t} n_j$.
- $\mathrm{sg}[\cdot]$ stops the gradient, $\odot$ multiplies entry by entry, and $\leftarrow$ assigns.
"""
VARIANTS = """
A paper's ablations are options (`method.apa=false`). Where published code departs from its paper in a way that affected the published
tables, a named switch reproduces it (`method.pfllib_bug=true` of FedAMP); the default follows the paper. The names used in papers
(`FedAvg+FT`, `HEART-PFL`) work too. What clients keep is an option of the methods that split a net: `method=fedavg method.keep=norm` is
FedBN, `method=fedper 'method.keep=head,*.lora_B'` is FedSA-LoRA.
"""
PROTOCOL = "data=digits partition.beta=0.1 rounds=10"
NEEDED = {  # what a method cannot do without, or would make no sense without, or would be slow without
    "perada": "net=cnn data.server_share=0.1 method.akt_steps=20 method.akt_batch=64",
    "heart": "net=cnn data.server_share=0.1 method.akt_steps=20 method.akt_batch=64 method.pgd_steps=5",
    "fedsimsup": "join=0.3",
    "fedbn": "net=resnet18",
}


@cache
def equations() -> dict[str, dict]:
    return tomllib.loads(EQUATIONS.read_text())


def pages() -> dict[str, str]:
    """Return the Markdown of each method's card and of their overview, by path below docs."""
    measured, tuned = natural(), judged()
    cards = {f"methods/{name}.md": card(cls, measured.get(name, []), tuned) for name, cls in methods.classes.items()}
    return {"methods/index.md": overview(measured), **cards}


def by_family() -> dict[str, list[str]]:
    """Return the names of all methods by the title of their family."""
    found: dict[str, list[str]] = {title: [] for title in FAMILIES.values()}
    for name, cls in sorted(methods.classes.items()):
        found.setdefault(FAMILIES.get(cls.family, cls.family.capitalize()), []).append(name)
    return {title: names for title, names in found.items() if names}


def overview(measured: Mapping[str, list[Place]]) -> str:
    """Return the page that lists all methods by family, and explains the symbols of the cards."""
    text = [
        "# Methods\n",
        f"All {len(methods.classes)} methods, one card each: the idea, the equations, what travels and what stays, options, "
        "what was measured, and a command to try it. [Choosing](../choosing.md) says how to find the one for your data.\n",
    ]
    data = [place.data for place in measured.get("local", [])]
    short = [title.split(":")[0].split(" of ")[0] for title in data]
    if data:
        text.append(
            f"The last {len(data)} columns are places in an untuned comparison on [data whose clients are real](../results/natural.md); "
            "a dash is a method that does not do the task, or needs samples at the server.\n"
        )
    for title, names in by_family().items():
        rows = []
        for name in names:
            cls = methods.classes[name]
            places = {place.data: f"{place.rank}" for place in measured.get(name, [])}
            rows.append(
                [f"[`{name}`]({name}.md)", str(cls.year or ""), code(cls.up), code(cls.keeps)]
                + [places.get(one, "–") for one in data]
            )
        columns = ["method", "year", "leaves a client", "stays", *short]
        text += [f"## {title}\n", table(columns, rows, numbers=[1, *range(4, 4 + len(data))])]
    return "\n".join([*text, "## Variants\n", VARIANTS, "## Notation\n", NOTATION])


def card(cls: type[Method], places: list[Place], tuned: Mapping[str, list]) -> str:
    """Return the card of one method."""
    idea, *rest = paragraphs(cls)
    name = cls.name
    sections = [f"# {name}\n", idea + "\n"]
    if cls.paper:
        sections.append(f"*{escape_markdown(cls.paper)}{f', {cls.year}' if cls.year else ''}*\n")
    sections += [
        "## How it works\n",
        "\n\n".join(rest) + "\n",
        _equations(name),
        "## What travels, what stays\n",
        _travels(cls),
    ]
    sections += ["## Options\n", option_table("method.", options(cls)), "## When it helps, and when not\n"]
    sections += [_measured(name, places), _judged(tuned.get(name, [])), _claimed(claimed().get(name, []))]
    sections += ["## Try it\n", _example(cls)]
    return "\n".join(part for part in sections if part.strip())


def _equations(name: str) -> str:
    """Return the equations as Markdown with LaTeX."""
    known = equations()[name]
    steps = equations()[known["same_as"]]["steps"] if "same_as" in known else known["steps"]
    lines = [f"{f'{says}:{chr(10)}{chr(10)}' if says else ''}$$\n{tex}\n$$\n" for says, tex in steps]
    return "\n".join([*lines, "[What the symbols mean](index.md#notation)\n"])


def _travels(cls: type[Method]) -> str:
    when = "after the server's answer" if cls.eval_point == "after_sync" else "right after local training"
    rows = [
        ["The server sends", code(cls.down)],
        ["A client sends", code(cls.up)],
        ["A client keeps", code(cls.keeps)],
        ["Evaluated", when],
        ["Running statistics of BatchNorm", "stay at the client" if cls.bn_buffers == "local" else "are averaged"],
        ["Tasks", ", ".join(cls.tasks)],
        ["A client that joins later", escape_markdown(cls.new_client)],
    ]
    lines = [table(["", ""], rows)]
    reveals = learnt(cls)
    if reveals:
        lines.append("A curious server learns:\n")
        lines += [f"- from `{entry}`: {escape_markdown(what)}" for entry, what in reveals.items()]
        lines.append("\n[Privacy](../privacy.md) has this for all methods.\n")
    return "\n".join(lines)


def _measured(name: str, places: list[Place]) -> str:
    if name == "local":
        return (
            "It is what the others are measured against: a federation is worth its trouble where they do better. Few samples per client "
            "and clients that are alike speak for federating; many samples and clients that differ speak for training alone.\n"
        )
    if not places:
        return "Not measured on [data whose clients are real](../results/natural.md), because it needs samples at the server.\n"
    good, bad = [p for p in places if p.helped], [p for p in places if not p.helped]
    said = []
    if good:
        said.append(f"Better than training alone on {_names(good)}.")
    if bad:
        said.append(f"Not better than training alone on {_names(bad)}.")
    rows = [
        [
            escape_markdown(p.data),
            f"{p.rank} of {p.methods}",
            f"{p.value} {p.metric}" if p.gain is not None else "diverged",
            "–" if p.gain is None else f"{p.gain:+g}",
            p.worse_off,
        ]
        for p in places
    ]
    header = ["data", "place", "mean over clients", "gain over alone", "clients worse off than alone"]
    how = "[how it was measured](../results/natural.md)"
    note = f"A small net, 10 rounds, nothing tuned: {how}. With other data or settings, places change."
    return "\n".join([" ".join(said) + "\n", table(header, rows, numbers=range(1, 5)), note + "\n"])


def _judged(places: list[tuple[str, int, int, float, float | None]]) -> str:
    if not places:
        return ""
    rows = [
        [escape_markdown(title), f"{rank} of {count}", f"{value:.4f}", "–" if gain is None else f"{gain:+.4f}"]
        for title, rank, count, value, gain in places
    ]
    text = "Against methods that were each tuned with the same number of trials ([how](../results/judge.md)):\n"
    return "\n".join(
        [text, table(["setting", "place", "mean over clients", "gain over alone"], rows, numbers=[1, 2, 3])]
    )


def _claimed(claims: list[tuple[str, str, str]]) -> str:
    if not claims:
        return ""
    rows = [[escape_markdown(says), escape_markdown(setting), verdict] for says, setting, verdict in claims]
    text = "What its paper claims, tested on a small scale ([how, and by how much](../results/evidence.md)):\n"
    return "\n".join([text, table(["claim", "protocol", "verdict"], rows)])


def _names(places: list[Place]) -> str:
    return " and ".join(", ".join(place.data.split(":")[0] for place in places).rsplit(", ", 1))


def example(name: str) -> str:
    """Return a command that compares the method with training alone and with FedAvg, on data that comes with the package."""
    more = f" {NEEDED[name]}" if name in NEEDED else ""
    if more:
        return f"fedtailor run method={name} {PROTOCOL}{more}"
    return f"fedtailor compare {' '.join(dict.fromkeys(('local', 'fedavg', name)))} {PROTOCOL}"


def _example(cls: type[Method]) -> str:
    made = f"ft.{cls.__name__}()"
    python = f'import fedtailor as ft\n\nrun = ft.run("digits", {made}, rounds=10)  # options are arguments of {cls.__name__}'
    quick = "<!-- quick: rounds=1 clients=4 data.fraction=0.2 -->\n"
    return f"{quick}```sh\n{example(cls.name)}\n```\n\n{quick}```python\n{python}\n```\n"
