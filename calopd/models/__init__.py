"""Language models and their tokenizers: loading, downloading, prompts, devices."""
