"""Repeat what the papers report: a module for each experiment, and what several of them share.

Contents:

    runner     trainings, and what is written of them
    page       an experiment's report as one offline page
    backdoors  the common part of experiments with backdoors: a case's two accuracies, in words, in a table and
               as curves
    adapters   `precad experiment adapters`: fine-tuning with private adapters, beside central DP-SGD
    central_opacus  the same adapters trained by Opacus, at one party that holds all records
    convex_sets  `precad experiment convex-sets`: backdoors against one ball and against smaller convex sets
    correlated_noise  `precad experiment correlated-noise`: noise correlated over rounds, beside independent noise
    two_servers  the cases of experiments trained on two real servers, by `precad run`
    tightness  `precad experiment tightness`: what each method certifies of the same trainings, and the attack
               that ends it
    naseri/    experiments of Naseri et al.'s paper
    precad/    experiments of PRECAD's paper
    ptr/       experiments of the propose-test-release paper
    xie/       experiments of Xie et al.'s paper
"""
