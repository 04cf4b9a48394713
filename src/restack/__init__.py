"""Re-stack the layers of pretrained transformers."""
