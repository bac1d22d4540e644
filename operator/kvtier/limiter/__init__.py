"""Lets in what the engines can prefill while a tier is cold, and refuses the rest."""
