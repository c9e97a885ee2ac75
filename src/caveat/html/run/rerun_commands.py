"""Commands that repeat a run with more rounds or other settings, their duration, and when more rounds are advised."""

from markupsafe import Markup

from ...core.text import MINUS, duration, joined, percent
from ...files import RunFolder
from ..commands import code
from .classification import ALONE
from .incidents import varied
from .rounds import model_of, rising, unstable


def by(command: str, took: float) -> Markup:
    """Return a command and about how many seconds it takes, judging by this run; empty without a command."""
    about = f" (about {duration(took)})" if took else ""
    return Markup(" with {}{}").format(code(command), about) if command else Markup()


WITH_ALONE = f'baselines=["{ALONE}"]'
"""The setting that also trains silos alone, without uncertainty settings that do not fit local models."""


def unknown_alone(run: RunFolder) -> bool:
    """Return whether training alone is unknown and can be added. An initial model and newcomers prevent this, because
    they need a global model."""
    fits = not run.section("federation").get("newcomers") and not (run.record and run.record.spec.get("init_from"))
    return fits and run.method != ALONE and ALONE not in run.comparable and len(run.silos) > 1


def twice(run: RunFolder) -> Markup:
    """Return the command that repeats the run with twice the rounds, and with training alone if that is not known."""
    options = ["--set", f"rounds={2 * run.rounds_run}"]
    if new := unknown_alone(run):
        options += ["--set", WITH_ALONE]
    return by(varied(run, "longer", *options), 2 * (2 * seconds(run)[0] if new else sum(seconds(run))))


def seconds(run: RunFolder) -> tuple[float, float]:
    """Return how many seconds the run took, and how many its baselines took together."""
    took = [sum(each.summary.seconds.values()) if each.summary else 0.0 for each in (run, *run.baselines.values())]
    return took[0], sum(took[1:])


def longer(run: RunFolder) -> Markup | None:
    """Return the advice to train for more rounds, if validation accuracy still rose in the last round."""
    if (gain := rising(run)) is None:
        return None
    of = model_of(run)
    if peaks := unstable(run):
        told = joined([f"{percent(share)} after round {at:.0f}" for at, share in peaks])
        text = "Training is not stable: validation accuracy{} was {}. Train for more <code>rounds</code>{}, or with a "
        return Markup(f"{text}lower <code>training.lr</code>.").format(f" of {of}" if of else "", told, twice(run))
    text = Markup(
        "Train for more <code>rounds</code>{}: in the last round, validation accuracy{} still rose by {} points"
    )
    known = [f"{100 * end:.1f}".replace("-", MINUS) for end in gain.known]
    ends = " (95 % interval over silos {} to {})".format(*known[1:]) if known[1:] else ""
    ends += ", which chance over silos can explain" * (not gain.clear and bool(ends))
    return text.format(twice(run), f" of {of}" if of else "", known[0]) + f"{ends}."


def data_first(run: RunFolder) -> Markup | None:
    """Return the advice to check unusual data first and, unless this would replace settings of the run, to repeat it
    with the settings that warnings propose; None without warnings about data."""
    unusual = [each for each in (run.summary.warnings if run.summary else ()) if each.of_data]
    lines = [line for each in unusual for line in each.settings]
    keys = {line.partition(" = ")[0] for line in lines}
    given, again = {key.split(".")[1] for key in keys} | {"dictionary", "files"}, Markup()
    if lines and len(keys) == len(lines) and not any(run.section("data").get(name) for name in given):
        command = varied(run, "corrected", *(word for line in lines for word in ("--set", line)))
        which = "setting proposed there is" if len(lines) == 1 else "settings proposed there are"
        known = Markup("; if the {} right, repeat the run{}").format(which, by(command, sum(seconds(run))))
        again = known if command else again
    return Markup("Check the unusual data of the run (see warnings) first{}.").format(again) if unusual else None
