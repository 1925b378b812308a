"""Files and folders that appear whole or not at all.

whole  a file, and a folder, that appear with everything in them, or not at all
"""
