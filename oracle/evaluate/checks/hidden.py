"""The list of hidden behaviours: every setting that acts without being asked for, and who tells of it."""

from __future__ import annotations

from oracle.evaluate import unset
from oracle.evaluate.check import About, Found
from oracle.evaluate.evidence import Evidence
from oracle.evaluate.schema import Setting

ABOUT = About(dimension="semantic", step=3, needs=("profile", "unsaid"))


def judge(evidence: Evidence) -> Found:
    """From the profile, and from a run of which as little as possible was asked."""
    run = evidence.run("unsaid")
    if unset.profile(evidence) is None:
        return Found(status="fail", says=f"its semantics are not known: {evidence.get('profile')['refused']}")
    settings = list(dict.fromkeys(unset.acting(evidence)))
    known = {one.name for one in settings}
    settings += [one for one in unset.of(evidence, run) if one.name not in known]
    semantic = [one for one in settings if one.effect == "semantic"]
    hidden = [one for one in semantic if not documented(one)]
    details = {"list": [[one.name, one.asked, one.acts, one.source, told(one)] for one in settings]}
    if hidden:
        names = ", ".join(f"{one.name} = {one.acts}" for one in hidden)
        says = (
            f"{len(hidden)} of {len(semantic)} values that nobody asked for are in no argument's documentation: {names}"
        )
        return Found(status="fail", says=says, unset=tuple(settings), details=details)
    if semantic:
        return Found(status="conditional", says=unset.words(tuple(semantic)), unset=tuple(settings), details=details)
    return Found(status="pass", says="nothing acts without being asked for", unset=tuple(settings), details=details)


def documented(setting: Setting) -> bool:
    """Whether an argument, a variable or the user's own loop carries it, or the output; of an undecided one, yes."""
    decided = setting.source != unset.UNDECIDED
    return not decided or setting.logged or setting.argument is not None or setting.source == "the user's own loop"


def told(setting: Setting) -> str:
    """Who tells of a setting."""
    docs = "an argument's documentation" if setting.argument else ""
    return " and ".join(filter(None, (docs, "the output" if setting.logged else ""))) or "nobody"
