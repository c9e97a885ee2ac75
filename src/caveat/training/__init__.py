"""Training at one silo: the only loop over batches, its optimizers, and the tensors of modules."""
