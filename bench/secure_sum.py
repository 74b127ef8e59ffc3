"""What a secure sum costs beside a plain mean: bytes, and processor time of a client and of the server, as ratios.

    python -m bench.secure_sum --clients 10,50 --numbers 100000 --dropped 0.2 --json secure_sum.json

A plain round writes a client's float32 vector into bytes and averages the vectors; a secure one has all four messages. Both are timed in
turns, in processor time of one thread, and the shortest of the repeats counts. Training is not part of either.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedtailor.learning import Payload, Reply
from fedtailor.learning.mixing import weighted_mean
from fedtailor.privacy.secure_sum.client import Contribution
from fedtailor.privacy.secure_sum.ring import FixedPoint, to_tensor
from fedtailor.privacy.secure_sum.server import Summation
from fedtailor.privacy.secure_sum.terms import Terms

SAMPLES = 1000  # of each client


@dataclass
class Cost:
    """Seconds of one client, seconds of the server, and bytes to and from one client; each is the mean over clients."""

    client: float = 0.0
    server: float = 0.0
    up: float = 0.0
    down: float = 0.0


@dataclass(frozen=True)
class Row:
    """One federation: the costs of its secure sum, and its bytes as a multiple of the plain ones."""

    clients: int
    numbers: int
    dropped: int
    bytes_ratio: float
    milliseconds_client: float
    milliseconds_server: float
    server_ratio: float


def timed(function: Callable[[], Payload]) -> tuple[Payload, float]:
    start = time.process_time()
    result = function()
    return result, time.process_time() - start


def weight(payload: Payload) -> int:
    return sum(tensor.nbytes for tensor in payload.values())


def plain(vectors: Sequence[Tensor]) -> Cost:
    replies = [Reply(i, SAMPLES, {"model": vector}) for i, vector in enumerate(vectors)]
    _, seconds = timed(lambda: {"model": weighted_mean(replies, "model")})
    return Cost(0.0, seconds, vectors[0].nbytes, vectors[0].nbytes)


def secure(vectors: Sequence[Tensor], dropped: int, round: int) -> Cost:
    """Run one sum; the last `dropped` clients fall silent after they have shared their keys."""
    cost, count = Cost(down=vectors[0].nbytes), len(vectors)  # the model goes down as in a plain round
    terms = Terms("bench", round)
    form = FixedPoint(1024.0, SAMPLES, count)
    clients = [Contribution(terms, i, bytes([round % 256, i % 256]) * 16) for i in range(count)]
    server = Summation(terms)

    def each(
        some: Sequence[int], answer: Callable[[int], Payload], sent: Callable[[int], Payload]
    ) -> dict[int, Payload]:
        found: dict[int, Payload] = {}
        for i in some:
            message = sent(i)
            found[i], seconds = timed(lambda i=i: answer(i))  # type: ignore[misc]
            cost.client += seconds / len(some)
            cost.up += weight(found[i]) / len(some)
            cost.down += weight(message) / len(some)
        return found

    def serve(function: Callable[[], Payload]) -> Payload:
        result, seconds = timed(function)
        cost.server += seconds
        return result

    everyone, survivors = range(count), range(count - dropped)
    keys = each(everyone, lambda i: clients[i].advertise(), lambda i: {})
    offer = serve(lambda: server.take_keys(keys))
    shares = each(everyone, lambda i: clients[i].share(offer), lambda i: offer)

    def dealt() -> Payload:
        server.take_shares(shares)
        return {}

    serve(dealt)
    inboxes = {i: serve(lambda i=i: server.inbox(i)) for i in survivors}  # type: ignore[misc]

    def masked(i: int) -> Payload:
        return {"model": to_tensor(clients[i].mask(inboxes[i], form.encode(vectors[i], SAMPLES)))}

    sent = each(survivors, masked, inboxes.__getitem__)
    request = serve(lambda: server.take_masked({i: up["model"] for i, up in sent.items()}, len(vectors[0])))
    revealed = each(survivors, lambda i: clients[i].unmask(request), lambda i: request)
    serve(lambda: {"mean": form.decode(server.unmask(revealed), SAMPLES * len(survivors))})
    return cost


def measured(clients: int, numbers: int, share: float, repeats: int) -> Row:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(numbers, generator=generator) for _ in range(clients)]
    dropped = int(share * clients)
    pairs = [(plain(vectors), secure(vectors, dropped, round)) for round in range(repeats)]
    base, cost = (Cost(**{k: min(asdict(p[at])[k] for p in pairs) for k in asdict(pairs[0][at])}) for at in (0, 1))
    return Row(
        clients,
        numbers,
        dropped,
        bytes_ratio=(cost.up + cost.down) / (base.up + base.down),
        milliseconds_client=1000 * cost.client,
        milliseconds_server=1000 * cost.server,
        server_ratio=cost.server / max(base.server, 1e-9),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="10,50", help="numbers of clients")
    parser.add_argument("--numbers", type=int, default=100_000, help="numbers in the vector")
    parser.add_argument(
        "--dropped", type=float, default=0.2, help="share of the clients that drop out after sharing keys"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the numbers to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for clients in map(int, args.clients.split(",")):
        for share in (0.0, args.dropped):
            rows.append(row := measured(clients, args.numbers, share, args.repeats))
            print(
                f"{row.clients} clients, {row.dropped} dropped, {row.numbers:,} numbers: {row.bytes_ratio:.2f} times the bytes, "
                f"{row.milliseconds_client:.1f} ms at a client, {row.milliseconds_server:.1f} ms at the server "
                f"({row.server_ratio:.0f} times a plain mean)",
                flush=True,
            )
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
