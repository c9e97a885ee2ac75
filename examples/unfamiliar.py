"""Draw a model's predictions for its own silo's digits and for inputs that no silo has: docs/unfamiliar.png.

python examples/unfamiliar.py [FILE.png]
"""

import sys

import torch
from PIL import Image, ImageDraw, ImageFont

import caveat

torch.manual_seed(0)  # the weights that the network begins with
net = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(128, 10)
)
silos = caveat.data.rotated(caveat.data.digits(), angles=(0, 15, 30), silos_per_angle=2, seed=0)
method = caveat.FedAvg(rounds=40, training=caveat.Training(batch_size=32, lr=0.003))
run = caveat.run(silos, method, model=net, uncertainty=caveat.Uncertainty(policy="switch"))

test = silos["silo-0"].test.x
asked = {
    "its own": test[0],
    "its own, ambiguous": test[run.predictor("silo-0")(test).total.argmax()],
    "on its side": test[0].rot90(1, (-2, -1)),
    "noise": torch.randn(test[0].shape, generator=torch.Generator().manual_seed(0)),
}
inputs = torch.stack(list(asked.values()))
answer = run.predictor("silo-0")(inputs)

WIDE, SIDE, LINE = 250, 170, 24
page = Image.new("RGB", (WIDE * len(asked), SIDE + 5 * LINE), "white")
draw, font = ImageDraw.Draw(page), ImageFont.load_default(18)
for i, (name, picture) in enumerate(zip(asked, silos.to_image(inputs), strict=True)):
    page.paste(Image.fromarray(picture[..., 0]).resize((SIDE, SIDE), Image.Resampling.NEAREST), (WIDE * i + 40, 10))
    abstains = answer.decision[i] == caveat.Decision.ABSTAIN
    unfamiliar = answer.is_unfamiliar[i]
    lines = [
        name,
        f"says {answer.label[i]}, {answer.probs[i].max():.1%} sure",
        f"familiarity p = {answer.familiarity[i]:.2f}",
        f"{'abstains' if abstains else 'answers'}{': unfamiliar' if unfamiliar else ': unsure' * abstains}",
    ]
    for row, line in enumerate(lines):
        color = ("#b00020" if abstains else "#006b3c") if row == 3 else "black"
        draw.text((WIDE * i + 40, SIDE + 20 + row * LINE), line, color, font)
page.save(sys.argv[1] if len(sys.argv) > 1 else "unfamiliar.png")
