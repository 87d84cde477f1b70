"""How far are two paths of one attention apart, which rounding places cause it, and what changes one path's bits?"""
