"""Silos of one architecture trained side by side: K models in one batched call of `torch.func.vmap`."""
