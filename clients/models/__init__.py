"""The models that clients train, and the flat vector that stands for one.

Modules:

    networks       how a model is made, and the flat vector that stands for it
    architectures  models that have a name here
    extension      a user's own class or function by import path
    constants      frozen parameters, which become buffers
    fixing         GroupNorm for batch normalisation
    adapters       low-rank adapters beside a constant base
    adapter_files  their constants as files that the task names by digests
    safetensors_file  files of tensors
    outputs        what a model returns, as one tensor
    output_range   tells probabilities from logits
    losses         the loss of a record, by name or the user's own
    metrics        how good a model is
    learning       what a task trains: the model, its loss, what is measured
    precision      how a user's code is tried: in float64, or as it was written
    raised         what a user's code may raise meanwhile
    fingerprint    the digest by which organisations compare their models
"""
