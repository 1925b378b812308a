"""Certificates that predictions and losses withstand attacks by clients.

Modules:

    expected_loss      what an attack can do to an expected loss; PRECAD's Theorem 2
    prediction         attackers that a prediction survives
    attack_inefficacy  attackers and the cost of an attack
    attack_simulation  the worst attack on a prediction, against which certificates are held
    monte_carlo        estimates from independent trainings, with their confidence
    planner            which noise reaches a wish
"""
