"""What operators and the housekeeper do where the log and the checkpoints of groups meet: groups made and removed,
rewinds, retention, and a change of the partition count looked at before it is made.
"""
