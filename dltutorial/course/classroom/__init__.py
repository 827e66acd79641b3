"""For instructors and their classes: joining one, looking at it, planning one.

* ``membership``: what a learner does: join, leave, see what is shared. Names are made up in ``names``.
* ``lines``, ``folder``: reading what learners (or somebody else) put into the class's folder, with distrust.
* ``room``: what it means: who is where, who needs help, which misconception is the commonest.
* ``strips``, ``room_page``, ``room_sections``, ``view``: one page of it, written again and again if asked.
* ``schedule``, ``seats``: how long a class takes, and how many nodes; ``dltutorial doctor --class N``.
"""
