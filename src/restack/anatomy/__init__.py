"""Where the layers live in a model, a checkpoint and a config."""
