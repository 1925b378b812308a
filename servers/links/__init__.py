"""The connections that a server opens: to its peer and to the dealer.

peer           the link between A and B: hello, relays, goodbye
lane           the connection beside it on which MPC's steps go back and forth
lane_opening   how it opens, at A and at B, where strangers connect as well
lane_listener  how it opens, at A and at B, where strangers connect as well
waiting_room   how it opens, at A and at B, where strangers connect as well
step_limits    how long a step may take, and how much of it a peer may send
dealer         the link from an aggregator to the dealer
credentials    what an aggregator shows and trusts, renewed while it runs
"""
