"""Files and folders that appear whole or not at all.

whole_file    one that appears with everything in it, or not at all
whole_folder  one that appears with everything in it, or not at all
"""
