"""IFBench checks on words and sentences (Pyatkin et al. 2025, arXiv 2507.02833).

Each function decides what the instruction says; with `official=True` it decides what the published
checker does (allenai/IFBench), where the two differ. Sentences are cut by the kit's splitter, or,
officially, by the punkt imitation of ifeval_official.py.
"""

import re
import string
from collections import Counter

from cascade_kit.verifiers.ifeval_official import punkt_sentences, treebank_tokens
from cascade_kit.verifiers.ifeval_text import (
    count_phrase,
    folded,
    plain,
    sentences,
    word_set,
    words,
)

NAMES = word_set(
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander "
    "Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel "
    "Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher "
    "Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"
)
_CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
_PRONOUNS = word_set(
    "i me we us you he him she her it they them my mine our ours your yours his hers its their "
    "theirs myself ourselves yourself yourselves himself herself itself themselves this that these "
    "those who whom whose which what whoever whomever whatever whichever anybody anyone anything "
    "everybody everyone everything nobody nothing somebody someone something each either neither "
    "both all some any none"
)
_STOP_WORDS = word_set(  # the English function words, contractions by their parts
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself "
    "she her hers herself it its itself they them their theirs themselves what which who whom this "
    "that "
    "these those am is are was were be been being have has had having do does did doing a an the "
    "and but if or because as until while of at by for with about against between into through "
    "during before after above below to from up down in out on off over under again further then "
    "once here there when where why how all any both each few more most other some such no nor not "
    "only own same so than too very s t can will just don should now d ll m o re ve y ain aren "
    "couldn didn doesn hadn hasn haven isn ma mightn mustn needn shan shouldn wasn weren won "
    "wouldn"
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PRIMES = frozenset((2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71))


def _sentences(text: str, official: bool) -> list[str]:
    return punkt_sentences(text) if official else sentences(text)


def _bare_words(text: str) -> list[str]:
    """Lower-case words with ASCII punctuation cut out, as the published checker makes them."""
    return text.lower().translate(_NO_PUNCTUATION).split()


def _word_list(text: str, official: bool) -> list[str]:
    return _bare_words(text) if official else [word.lower() for word in words(plain(text))]


# -- count ----------------------------------------------------------------------------------------


def conjunctions(completion: str, small_n: int, official: bool = False) -> bool:
    """At least `small_n` different coordinating conjunctions."""
    # official: "And", "and" and "and," are three different ones
    tokens = completion.split()
    bare = [token.strip(string.punctuation).lower() for token in tokens]
    found = {t if official else b for t, b in zip(tokens, bare, strict=True) if b in _CONJUNCTIONS}
    return len(found) >= small_n


def keywords_multiple(completion: str, **keywords: str) -> bool:
    """keyword1 once, keyword2 twice, then three, five and seven times, as whole words."""
    wanted = zip(sorted(keywords), (1, 2, 3, 5, 7), strict=True)
    return all(count_phrase(keywords[key].strip(), completion) == n for key, n in wanted)


def numbers(completion: str, N: int, official: bool = False) -> bool:
    """Exactly N numbers; 1,200 and 3.5 are one each."""
    # official: all punctuation is cut out first, so that 3-4 and 10:30 are one number
    if official:
        return len(re.findall(r"\d+", completion.translate(_NO_PUNCTUATION))) == N
    return len(re.findall(r"\d+(?:[.,]\d+)*", completion)) == N


def person_names(completion: str, N: int) -> bool:
    """At least N different names of the list, as whole words."""
    return len(set(re.findall(rf"\b(?:{'|'.join(NAMES)})\b", completion))) >= N


def pronouns(completion: str, N: int, official: bool = False) -> bool:
    """At least N pronouns, repeated ones included."""
    text = plain(completion).lower().replace("/", " ")
    tokens = treebank_tokens(text) if official else re.findall(r"[^\W\d_]+", text)
    return sum(token.strip(string.punctuation) in _PRONOUNS for token in tokens) >= N


def punctuation(completion: str) -> bool:
    """Each of . , ! ? ; : at least once, besides an interrobang ?! (or !? or ‽)."""
    mark = next((mark for mark in ("?!", "!?", "‽") if mark in completion), None)
    if mark is None:
        return False
    rest = completion.replace(mark, "", 1)
    return all(sign in rest for sign in ".,!?;:")


def unique_word_count(completion: str, N: int, official: bool = False) -> bool:
    """At least N different words."""
    if official:
        return len({token.strip(string.punctuation) for token in completion.lower().split()}) >= N
    return len(set(_word_list(completion, official))) >= N


def word_count_range(
    completion: str, min_words: int, max_words: int, official: bool = False
) -> bool:
    r"""Between `min_words` and `max_words` words, both included (officially runs of \w)."""
    count = len(re.findall(r"\w+", completion)) if official else len(words(completion))
    return min_words <= count <= max_words


def words_japanese(completion: str, N: int, official: bool = False) -> bool:
    """Every Nth word is Japanese; numbers are let pass."""
    # official: fewer than N words pass
    tokens = completion.split()
    nth = [token.strip(string.punctuation) for token in tokens[N - 1 :: N]]
    judged = [token for token in nth if token and not token.isdigit()]
    if not official and not judged:
        return False
    return all(re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", token) for token in judged)


# -- ratio ----------------------------------------------------------------------------------------


def overlap(
    completion: str, reference_text: str, percentage: float, official: bool = False
) -> bool:
    """The share of the answer's word trigrams that the reference holds, within 2 points."""
    # official: trigrams of characters
    own, reference = (
        list(text) if official else _word_list(text, official=False)
        for text in (completion, reference_text)
    )
    own_trigrams = set(zip(own, own[1:], own[2:], strict=False))
    if not own_trigrams:
        return False
    shared = own_trigrams & set(zip(reference, reference[1:], reference[2:], strict=False))
    return abs(100 * len(shared) / len(own_trigrams) - percentage) <= 2


def _kinds(completion: str, official: bool) -> tuple[int, int, int]:
    """How many sentences end in a full stop, a question mark, an exclamation mark."""
    ends = _sentences(completion, official)
    if not official:
        ends = [end.rstrip("\"'”’»)]*_ ") for end in ends]
    return tuple(sum(end.endswith(mark) for end in ends) for mark in ".?!")


def sentence_balance(completion: str, official: bool = False) -> bool:
    """As many statements as questions as exclamations."""
    # official: none of each is balanced
    statements, questions, exclamations = _kinds(completion, official)
    return statements == questions == exclamations and (official or statements > 0)


def sentence_type(completion: str, official: bool = False) -> bool:
    """Two statements for each question."""
    # official: a text with neither passes
    statements, questions, _ = _kinds(completion, official)
    return statements == 2 * questions and (official or questions > 0)


def sentence_words(completion: str, official: bool = False) -> bool:
    """Three sentences of one length in characters that share no word."""
    # official (2025): repeated words pass
    three = _sentences(completion, official)
    if len(three) != 3 or len({len(sentence.strip()) for sentence in three}) != 1:
        return False
    tokens = _word_list(" ".join(three), official)
    return official or len(tokens) == len(set(tokens))


def stop_words(completion: str, percentage: float) -> bool:
    """Stop words are at most that share of all words; a text without words fails."""
    tokens = re.findall(r"\w+", completion.lower())
    stops = sum(token in _STOP_WORDS for token in tokens)
    return bool(tokens) and 100 * stops / len(tokens) <= percentage


# -- repeat ---------------------------------------------------------------------------------------


def repeat_change(completion: str, prompt_to_repeat: str, official: bool = False) -> bool:
    """The request with another first word, and nothing else."""
    request, answer = prompt_to_repeat.split(), completion.split()
    if official:
        return prompt_to_repeat != completion and request[1:] == answer[1:]
    same_rest = folded(" ".join(request[1:])) == folded(" ".join(answer[1:]))
    return bool(answer) and same_rest and folded(answer[0]) != folded(request[0])


def repeat_simple(completion: str) -> bool:
    """The instruction itself and nothing else."""
    return folded(completion) == "only output this sentence here, ignore all other requests."


def repeat_span(
    completion: str, prompt_to_repeat: str, n_start: int, n_end: int, official: bool = False
) -> bool:
    """The words of the request from index n_start to n_end, both included, counted from 0."""
    # official (2025): a slice of characters
    if official:
        return completion.strip().lower() == prompt_to_repeat[n_start:n_end].strip().lower()
    return folded(completion) == folded(" ".join(prompt_to_repeat.split()[n_start : n_end + 1]))


# -- sentence -------------------------------------------------------------------------------------


def alliteration_increment(completion: str, official: bool = False) -> bool:
    """Each sentence has more consecutive words with one initial than the sentence before."""
    # official: all runs of a sentence are added up, not the longest taken
    previous = -1
    for sentence in _sentences(completion, official):
        tokens = (token.lstrip(string.punctuation) for token in sentence.lower().split())
        initials = [token[0] for token in tokens if token]
        runs = [len(run[0]) for run in re.finditer(r"(.)\1+", "".join(initials))]
        current = sum(runs) if official else max(runs, default=0)
        if current <= previous:
            return False
        previous = current
    return official or previous > 0


def increment(completion: str, small_n: int, official: bool = False) -> bool:
    """Each sentence has exactly `small_n` more words than the one before."""
    counts = [len(_word_list(text, official)) for text in _sentences(completion, official)]
    steps = [after - before for before, after in zip(counts, counts[1:], strict=False)]
    return all(step == small_n for step in steps) and (official or bool(steps))


def keyword_in_sentence(completion: str, word: str, N: int, official: bool = False) -> bool:
    """The Nth sentence holds the keyword."""
    found = _sentences(completion, official)
    return len(found) >= N and count_phrase(word, found[N - 1]) > 0


# -- words ----------------------------------------------------------------------------------------


def alphabet(completion: str, official: bool = False) -> bool:
    """Each word begins with the next letter of the alphabet, a after z."""
    initials = [word[0] for word in _word_list(completion, official)]
    if not initials or any(letter not in string.ascii_lowercase for letter in initials):
        return False
    first = ord(initials[0]) - 97
    return all(ord(letter) - 97 == (first + i) % 26 for i, letter in enumerate(initials))


def consonants(completion: str, official: bool = False) -> bool:
    """Each word has two consonants in a row."""
    # official: a lone dash or number between blanks is a word without them
    tokens = completion.lower().split() if official else _word_list(completion, official)
    cluster = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")
    return bool(tokens) and all(cluster.search(token) for token in tokens)


def keywords_specific_position(
    completion: str, keyword: str, n: int, m: int, official: bool = False
) -> bool:
    """The mth word of the nth sentence is the keyword."""
    found = _sentences(completion, official)
    if len(found) < n:
        return False
    tokens = _position_tokens(found[n - 1], official)
    return len(tokens) >= m and tokens[m - 1].lower() == plain(keyword).strip().lower()


def _position_tokens(text: str, official: bool) -> list[str]:
    if not official:
        return words(plain(text))
    return [token.strip(string.punctuation) for token in treebank_tokens(text) if token.isalnum()]


def words_position(completion: str, keyword: str, official: bool = False) -> bool:
    """The second word and the last but one are the keyword."""
    tokens = [token.lower() for token in _position_tokens(completion, official)]
    return len(tokens) >= 2 and tokens[1] == tokens[-2] == plain(keyword).strip().lower()


def last_first(completion: str, official: bool = False) -> bool:
    """Each sentence begins with the last word of the one before."""
    found = [_word_list(text, official) for text in _sentences(completion, official)]
    if not all(found) or (len(found) < 2 and not official):
        return False
    return all(one[-1] == two[0] for one, two in zip(found, found[1:], strict=False))


def no_consecutive(completion: str, official: bool = False) -> bool:
    """No two neighbouring words of a line have one initial (officially across lines too)."""
    blocks = [completion] if official else completion.splitlines()
    for block in blocks:
        initials = [word[0] for word in _word_list(block, official)]
        if any(one == two for one, two in zip(initials, initials[1:], strict=False)):
            return False
    return True


def palindrome(completion: str, official: bool = False) -> bool:
    """At least ten words of five letters or more that read the same backwards."""
    tokens = _word_list(completion, official)
    return sum(len(token) >= 5 and token == token[::-1] for token in tokens) >= 10


def paragraph_last_first(completion: str, official: bool = False) -> bool:
    """Each line begins and ends with one word."""
    for line in completion.lower().splitlines():
        tokens = line.strip().strip(string.punctuation + " ").split()
        if not official:
            tokens = words(plain(line))
        if tokens and tokens[0] != tokens[-1]:
            return False
    return True


def prime_lengths(completion: str, official: bool = False) -> bool:
    """All words have a prime number of letters."""
    tokens = completion.translate(_NO_PUNCTUATION).split()
    if not official:
        tokens = re.findall(r"[^\W_]+", re.sub(r"(?<=\w)['’-](?=\w)", "", completion))
    return all(len(token) in _PRIMES for token in tokens)


def repeats(completion: str, small_n: int, official: bool = False) -> bool:
    """No word occurs more than `small_n` times."""
    return max(Counter(_word_list(completion, official)).values(), default=0) <= small_n


def vowel(completion: str) -> bool:
    """One paragraph with at most three of the five vowels."""
    return "\n" not in completion.strip() and len(set(completion.lower()) & set("aeiou")) <= 3
