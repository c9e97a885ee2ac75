"""What to do with a run whose guarantee leaves no input answered."""

from markupsafe import Markup

from ...core.text import listed, percent
from ...files import RunFolder
from ...uncertainty.selective_risk import answers_needed
from .classification import too_few
from .guarantee import kept, tested_level
from .incidents import varied
from .rerun_commands import by, seconds, twice
from .silo_baselines import MOST_NAMED


def unanswered(run: RunFolder, longer: Markup | None) -> list[Markup]:
    """Return what to do if a guarantee leaves no input answered, where `longer` is how to train for more rounds if
    these are known to help; empty if some are answered."""
    promise, test = (run.summary.guarantee, kept(run.summary)) if run.summary else (None, None)
    if promise is None or test is None or test.answered:
        return []
    text = "Train for more <code>rounds</code>{}: a more accurate model may answer some inputs."
    steps = [longer or Markup(text).format(twice(run)), _more_calibration(run)]
    # whether twice the calibration inputs, with twice the errors, are enough to answer some inputs
    nearly = answers_needed(2 * promise.errors, promise.risk, tested_level(promise)) <= 2 * promise.answered
    steps = steps if longer or not nearly else steps[::-1]
    last = "Or allow more than {:.6g} % errors (<code>uncertainty.risk</code>), if your use permits this: decide "
    last += "before the next test."
    return [
        Markup("Have a person decide every input{}.").format(_by_sets(run)),
        steps[0],
        "Or " + steps[1][:1].lower() + steps[1][1:],
        Markup(last).format(100 * promise.risk),
    ]


def _by_sets(run: RunFolder) -> str:
    """Return what prediction sets tell the person who decides; empty for a run without them."""
    test, sets = (run.summary.pooled, run.summary.sets) if run.summary else (None, None)
    if test is None or sets is None or test.set_coverage is None or test.set_size is None:
        return ""
    told = (
        f", with the help of the prediction sets: these have {test.set_size:.2f} classes on average, and contain the "
    )
    told += f"class of {percent(test.set_coverage)} of test inputs"
    known = [(silo.test.set_coverage, silo) for silo in run.silos if silo.test.set_coverage is not None and silo.n_test]
    if len(known) > 1 and not too_few(run):
        least, silo = min(known, key=lambda each: each[0])
        told += f" ({round(least * (silo.n_test or 0)):,} of {silo.n_test:,} at {silo.name}, the lowest)"
    told += f", where {percent(sets.coverage)} were asked for"
    warned = run.summary.warnings if run.summary else ()
    absent = [silo for each in warned if each.kind == "absent_classes" for silo in each.silos]
    never = "; do not rule out classes without calibration inputs (see warnings) by the sets of "
    return told + f"{never}{listed(absent, MOST_NAMED)}" * bool(absent)


def _more_calibration(run: RunFolder) -> Markup:
    """Return how to calibrate on twice the inputs, taken from training; without a command if too few are left."""
    sizes = [sum(getattr(silo, f"n_{of}") or 0 for silo in run.silos) for of in ("calibration", "validation", "train")]
    total, (calibration, validation, train) = sum(sizes), sizes
    if not total or train < 2 * calibration:
        return Markup("Calibrate on more inputs (<code>data.split.calibration</code>).")
    shares = round(2 * calibration / total, 2), round(validation / total, 2)
    options = [f"data.split.calibration={shares[0]:g}", f"data.split.validation={shares[1]:g}"]
    options.append(f"data.split.train={1 - sum(shares):.2g}")
    command = varied(run, "calibrated", *(word for each in options for word in ("--set", each)))
    how = by(command, sum(seconds(run))) or Markup(" (<code>data.split.calibration</code>)")
    text = "Calibrate on about {:,} inputs instead of {:,}, with {:,} instead of {:,} for training,{}."
    return Markup(text).format(2 * calibration, calibration, train - calibration, train, how)
