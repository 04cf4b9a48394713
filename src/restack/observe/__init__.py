"""What every layer of a stack knows and does, without training it."""
