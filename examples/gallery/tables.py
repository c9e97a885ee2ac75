"""
Tables
======

x
"""
print(1)
