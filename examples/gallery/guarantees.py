"""
A bound on the error rate
=========================

``policy="guaranteed"`` answers as many inputs as it can while at most 5 % of the answers are wrong, with a confidence
of 90 % over the draw of calibration inputs. ``set_coverage`` adds prediction sets.
"""

import caveat

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 60), silos_per_angle=1, seed=0)
uncertainty = caveat.Uncertainty(policy="guaranteed", risk=0.05, confidence_level=0.9, set_coverage=0.9)
run = caveat.run(
    silos,
    caveat.FedAvg(rounds=10, training=caveat.Training(batch_size=32, lr=0.003)),
    model=caveat.ModelSettings(name="mlp"),
    uncertainty=uncertainty,
    every=10,
)

# %%
# The bound covers new inputs like the calibration inputs. On test inputs, the error rate can exceed it by chance.

for silo in silos:
    answer = run.predictor(silo.name)(silo.test.x)
    answered = answer.decision != caveat.Decision.ABSTAIN
    wrong = (answer.label != silo.test.y)[answered].double().mean()
    covered = answer.sets[range(len(silo.test.y)), silo.test.y].double().mean()
    sizes = answer.sets.sum(1).double().mean()
    print(
        f"{silo.name}: {len(answered)} test inputs, answered {answered.double().mean():.0%}, {wrong:.1%} of them wrong"
    )
    print(f"        sets contain the true class for {covered:.0%}, and {sizes:.2f} classes on average")
