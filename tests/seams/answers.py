"""Questions of a run at the local Azure, and the words that answer them."""

WORDS = ("red", "green", "blue", "one", "two")
QUESTIONS = {f"word {n} of 15?": WORDS[n % len(WORDS)] for n in range(15)}
