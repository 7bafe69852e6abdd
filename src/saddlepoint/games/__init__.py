"""Games between an attacker and a defender that choose subsets of the exits of a network."""
