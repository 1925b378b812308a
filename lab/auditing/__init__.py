"""`precad audit privacy`: what an attack on the running system shows, beside each epsilon that is printed.

Modules:

    members     audit clients as members of a task: their canaries, their coins, the model's head
    real_records  real records of the data set, whose gradients move every parameter
    real_record_rounds  rounds of a deployment's real audit clients, by what these wrote down
    real_record_verdicts  what they showed, beside the epsilons that are printed
    seats       where the auditor sits
    randomness  draws of the operating system for a simulation, and server noise kept at the canaries
    deployment_round  the round of a deployment, with what each view sees of the canaries
    seat_verdicts  what one seat saw, beside the epsilon that is printed for it
    audit       a whole audit of a simulation: train, score, and judge
    charges     what servers' ledgers charged, beside what the rounds cost
    deployment  an audit of a deployment, by what its members wrote down
    report      print the report of an audit
"""
