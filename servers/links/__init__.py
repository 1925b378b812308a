"""The connections between servers: of A with B, and of both with the dealer.

Modules:

    peer           the link between A and B: hello, relays, goodbye
    words          words of mode `proved`, which leave together
    lane           the connection beside it on which MPC's steps go back and forth
    lane_opening   how the lane opens: A shows, before TLS, that B has told it a token
    lane_listener  B's side of that, where strangers connect as well
    lane_seal      the lane's second encryption, where operators require a post-quantum key exchange
    waiting_room   connections of strangers, before they have shown that they may be here
    step_limits    how long a step may take
    dealer         the link from an aggregator to the dealer
    credentials    what an aggregator shows and trusts, renewed while it runs
"""
