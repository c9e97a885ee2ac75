"""Training inside one silo: the only loop over batches, its optimisers, and the tensors of modules."""
