"""Experiments of Naseri et al.'s paper.

central_local_backdoor  `precad experiment central-local-backdoor`: central and local DP, and weaker
                        defences, against backdoors on MNIST
next_word               `precad experiment word-backdoor`: word prediction under three backdoor sentences
"""
