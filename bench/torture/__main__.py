"""Run the parts of the torture and print their tries and failures; the exit code is 1 if any promise was broken."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path

from bench.torture import Result, __doc__, read_results, table

# Each is a module of this package whose function run(share) returns its results; share scales the number of tries.
PARTS = ("configs", "files", "answers", "updates", "takeovers", "kills", "network")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="share of the tries, such as 0.05 for a quick look")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--table", type=Path, help="show the numbers in this file, and run nothing")
    args = parser.parse_args()
    if args.table is not None:
        print(table(read_results(args.table.read_text())))
        return
    results: dict[str, list[Result]] = {}
    for part in args.parts or PARTS:
        began = time.perf_counter()
        results[part] = []
        for result in importlib.import_module(f"bench.torture.{part}").run(args.share):
            results[part].append(result)
            print(f"{part}: {result.promise}: {result.tries} tries, {len(result.failures)} failures", file=sys.stderr)
        print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        for text in [text for result in results[part] for text in result.failures[:5]]:
            print(f"    {text}", file=sys.stderr)
        if args.json is not None:
            write(args.json, results)
    print(table(results))
    sys.exit(any(result.failures for found in results.values() for result in found))


def write(path: Path, results: dict[str, list[Result]]) -> None:
    """Write the parts that were run into a file, beside those already there."""
    known = read_results(path.read_text()) if path.exists() else {}
    known |= results
    plain = {part: [dataclasses.asdict(r) for r in known[part]] for part in PARTS if part in known}
    path.write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    main()
