"""A CPU backend for Triton that compiles nothing: with TRITON_INTERPRET=1 its kernels run as Python on CPU tensors.

vLLM runs Model Runner V2, its code for GPUs, on a CPU only if Triton has a backend of the name `cpu`.
"""
