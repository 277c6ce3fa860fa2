"""The pure package: tensors and values in, tensors and values out. No files, no network, no configuration."""
