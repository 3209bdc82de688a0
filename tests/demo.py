"""Says whether `make demo` found what it must find: `python tests/demo.py RESULT.json EXIT_CODE`."""

from __future__ import annotations

import sys
from pathlib import Path

from oracle.result import Result

KNOB = "accumulation.tail_divisor"


def main(path: str, code: int) -> int:
    if not Path(path).exists():
        print(f"\nThe demo failed: oracle check ended with exit code {code} and wrote no {path}.")
        return code or 1
    result = Result.read(path)
    confirmed = [cause.knob for cause in result.causes if cause.status == "confirmed"]
    if (code, result.verdict) == (1, "diverged") and KNOB in confirmed:
        print(
            f"\nThe demo found what it must find: transformers 4.54.0 has diverged,\nand {KNOB} is confirmed. "
            "Exit code 1 of oracle check says so."
        )
        return 0
    print(
        f"\nThe demo failed: diverged with {KNOB} confirmed must come back (exit code 1), found {result.verdict} "
        f"with {', '.join(confirmed) or 'no cause'} confirmed (exit code {code})."
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
