"""Other people's answers to the same question, each a program with an environment of its own.

    crypten_ttp      CrypTen: square, sum, compare over gloo, tuples from its trusted third party; our
                     environment
    spu_norm         SecretFlow SPU, SEMI2K and CHEETAH, over its own brpc link; `make peers`
    opendp_gaussian  OpenDP's discrete Gaussian; `make peers`
    opacus_clients   Opacus' per-sample gradient hooks, client by client
    opacus_adapters  the hooks on adapters alone, a round whenever it is asked for one
    opacus_central  DP-SGD by Opacus on the same adapters, with all records at one party
    adapted_transformer  the model of that, which is ours too

All but the first import nothing of ours: their environment does not have it.
"""
