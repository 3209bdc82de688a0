"""What is said of recordings: what one holds, and how two stand to each other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from oracle.recording import Recording
from oracle.report import phrases
from oracle.report.phrases import Count

MOST_GROWTH = 12  # updates of which the report shows how far the two are apart


def record_lines(found: Recording) -> Iterator[str]:
    """What was recorded, in a few lines."""
    how = f", which ended with exit code {found.exit_code}" if found.exit_code else ""
    yield f"oracle: recorded {shlex.join(found.argv)}{how}"
    for trace in found.traces:
        whole = "" if trace.complete else ", up to where it ended"
        counted = f"{Count(trace.updates):update}, {Count(trace.addresses):address}"
        yield f"oracle: {trace.folder}, rank {trace.rank}: {counted}{whole}"
        yield from (f"oracle: note: {note}" for note in trace.notes)


def diff_lines(content: dict[str, Any], everything: bool) -> Iterator[str]:
    """What `oracle diff` says of two recordings. content: its JSON. everything: without shortening."""
    first, compared_ = content["first_divergence"], content["compared"]
    counted = f"{Count(compared_['addresses']):address} over {Count(compared_['updates']):update}"
    if content["verdict"] == "not_comparable":
        yield f"NOT COMPARABLE: {content['notes'][0]}"
        return
    if first is None:
        yield f"MATCH: {counted} are bit-identical"
    else:
        yield f"DIVERGED at {phrases.place(SimpleNamespace(**first))}"
        if first["missing"] is not None:
            yield f"  the {first['missing']} lacks it"
        elif first["reference"] is not None:
            yield f"  reference  {phrases.value(first['reference'], first['dtype'])}"
            yield f"  candidate  {phrases.value(first['candidate'], first['dtype'])}"
        if first["differing"] is not None:
            yield f"  differs    {first['differing']} of {first['total']} elements, worst {first['ulp']} ULP"
        site = content["site"]
        agree = ", ".join(phrases.inputs(site["agreeing_inputs"]))
        yield f"  site       {phrases.place(SimpleNamespace(**site))}" + (
            f": {agree} agree, bit for bit" if agree else ""
        )
        yield from (f"  because    {told}" for told in content["evidence"])
        yield f"  compared   {counted}"
        growth = content["growth"]
        shown = growth if everything else growth[:MOST_GROWTH]
        for one in shown:
            apart = f", {one['relative']:.3g} of their norm apart" if one["relative"] is not None else ""
            rank = f"rank {one['rank']}, " if len(content["ranks"]) > 1 else ""
            yield f"  after {rank}update {one['update']}: {one['differing']} of {one['total']} parameters differ{apart}"
        if len(growth) > len(shown):
            yield f"  and {len(growth) - len(shown)} more; --all shows them"
    for place in content["latent"][:4]:
        yield f"Latent: {phrases.place(SimpleNamespace(**place))} differs too, which by itself makes no verdict."
    yield from (f"Note: {note}" for note in content["notes"])
