"""Experiments of Xie et al.'s paper.

Modules:

    certified_setting   what is trained for it, by which row of the paper
    certified_accuracy  certified accuracy from the models of a case
    classes             which classes are told apart, by which model, and a public start of its training
    defences_shown      the table and the figure of robust accuracy by defence
    attack_levels       who attacks what
    cost_arithmetic     what an attack costs, measured and certified
    attack_shown        its paragraph, table and figures
    attack_cost         `precad experiment xie-attack-cost`: Xie et al.'s Figures 4, 5b to 5e, 6b to 6e, 7 and
                        10, what attacks cost; of ten classes the preprint's Figures 9 and 11
    defences            `precad experiment xie-defences`: Xie et al.'s Sec. 6.2.5 and Table 9, their
                        certification beside empirical defences
    insdp_certified     `precad experiment insdp-certified`: Xie et al.'s Tables 7 and 8 and Figures 5a, 6a and
                        8c, 8d, certified accuracy
    tables              `precad experiment xie-tables`: every epsilon that Xie et al. print, beside ours
    userdp_certified    `precad experiment userdp-certified`: Xie et al.'s Tables 4 to 6 and Figures 1 to 3,
                        clean and certified accuracy; of ten classes the preprint's Figure 10
"""
