"""What the papers report, repeated: a module for each experiment, and what several of them share.

runner               trainings, and what is written of them
certified_setting    what is trained for it, by which row of the paper
certified_accuracy   certified accuracy from the models of a case
two_classes          which classes are told apart, and by which model
public_start         a public model that trainings start from
xie_defences_shown   the table and the figure of robust accuracy by defence
attack_levels        who attacks what
attack_costs         what an attack costs, measured and certified
xie_attack_figures   its figures
xie_attack_shown     its paragraph and table
"""
