"""Attackers that teach the model a backdoor.

Modules:

    distributed       DBA, the distributed backdoor
    pattern           Backdoors by a pattern of white pixels
    pixel             Pixel-pattern backdoor: four white pixels in a corner
    poisoned_records  Poisoned instances
    replacement       the base of all backdoors
    semantic          Semantic backdoor
    triangle          Triangle backdoor: a white triangle in a corner
"""
