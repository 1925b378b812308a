"""Attackers that teach the model a backdoor.

distributed       DBA, the distributed backdoor
pattern           Backdoors by a pattern of white pixels
pixel             Pixel-pattern backdoor: four white pixels in a corner
poisoned_records  Poisoned instances
replacement       What backdoors share
semantic          Semantic backdoor
triangle          Triangle backdoor: a white triangle in a corner
"""
