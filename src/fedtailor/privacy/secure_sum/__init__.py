"""The sum of many clients' vectors, without the server seeing any of them (Bonawitz et al., 2017).

`ring` turns numbers into integers that can be added and masked, `primitives` names what is taken from the package `cryptography`, `shamir`
shares secrets among clients. A `client` and a `server` made of these exchange four messages in a round; docs/secure-sum.md has them.
"""
