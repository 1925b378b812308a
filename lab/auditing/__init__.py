"""`precad audit privacy`: what an attack on the running system shows, beside each epsilon that is printed.

Modules:

    members     audit clients as members of a task: their canaries, their coins, the model's head
    kinks       records at kinks of the model, for a clip that fails in floating point
    randomness  draws of the operating system for a simulation, and server noise kept at the canaries
    audited     the round of a deployment, with what each view sees of the canaries
    audit       a whole audit: train, score, and compare with what is printed
    shown       print the report of an audit
"""
