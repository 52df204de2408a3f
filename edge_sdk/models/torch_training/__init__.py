"""How a torch net trains: steps by autograd, optimisers, and traces of steps that run as one scripted function.

May import `objectives` and the torch files of `models` beside this folder; torch_model.py asks it for each fit.
"""
