"""Running error bounds of attention: how far from the exact result can an implementation with given roundings be?"""
