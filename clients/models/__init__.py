"""The models that clients train, and the flat vector that stands for one.

networks   what is trained, and the flat vector that stands for it
extension  a user's own class by import path
"""
