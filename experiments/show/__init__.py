"""What a study shows, as data: quantities, headline, figures and tables of study.toml become what a report has.

keys.py says what can be written; common.toml has the entries that studies share.
"""
