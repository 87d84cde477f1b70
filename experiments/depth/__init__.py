"""Attention inside a stack of blocks: how does its rounding grow with the depth, forward and backward?"""
