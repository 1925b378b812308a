"""Everything that one server computes from vectors of length d.

The engines are here. The loops that they run on a processor are in `precad.mpc.kernels`.

Modules:

    rows              64 ternary rows against modular wrap-around
    step              what a server computes from vectors of length d, in one pass over the uploads
    set_sums          further sums, for layers and half-spaces
    encrypted_region  bytes on disk that only this process can read
    spooled_words     a vector on disk, read and written tile by tile
    engines           where the local step runs
    cpu_engine        on the processor
    threads           several cores for one step
    torch_engine      on a GPU
"""
