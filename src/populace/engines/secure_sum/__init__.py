"""Sums that nobody can open into their parts: secure aggregation after Bonawitz et al. 2017, knowing nothing of methods.

shamir       t-of-n shares of a secret
primitives   keys, masks, sealed boxes and signatures, all from the package `cryptography`
roster       who is in the sum, fixed by agreement; and which sum it is
graph        which sites have masks with each other, where not all have: the numbers it takes, computed
messages     what a site and the coordinator send each other in the five steps
steps        the five steps of a site, as functions from what it keeps and a message to what it keeps and a reply
journal      what a site keeps: each step of a sum once, on disk before anything is sent
site         the steps over a journal
opening      the coordinator's side: relays messages, removes masks, never sees a part

`docs/secure-sums.md` says which published protocol this is, where it differs, and who can learn what.
"""
