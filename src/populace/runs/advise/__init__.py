"""Which method to use, for whom, and what to expect: the rule of `synthesize`, `plan` and `federation`, and `populace advise`.

`rule` chooses; `situation` is what the choice may know, `expectations` what was measured, `advice` puts them together and
`words` says it. The rule itself imports nothing heavy: `populace methods` shows it.
"""
