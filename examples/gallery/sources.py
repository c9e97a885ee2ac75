"""
Uncertainty estimators
======================

Train the same method with MC dropout, a Laplace approximation, snapshots and an ensemble of three models.
"""

import caveat

silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 60), silos_per_angle=1, seed=0)
for source in ("dropout", "laplace", "snapshots", "ensemble"):
    uncertainty = caveat.Uncertainty(source=source, **({"ensemble_size": 3} if source == "ensemble" else {}))
    run = caveat.run(
        silos,
        caveat.FedAvg(rounds=6, training=caveat.Training(batch_size=32, lr=0.003)),
        model=caveat.ModelSettings(name="mlp"),
        uncertainty=uncertainty,
        every=6,
    )
    answer = run.predictor("silo-0")(silos["silo-0"].test.x)
    right = answer.label == silos["silo-0"].test.y
    print(
        f"{source:10} accuracy {right.double().mean():.3f}, total uncertainty of right answers "
        f"{answer.total[right].mean():.2f}, of wrong answers {answer.total[~right].mean():.2f} nats"
    )
