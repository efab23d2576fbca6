"""Instruction following: every constraint accepts and rejects, faults are mended, rows are refused.

The recorded cases in tests/cases/instruction_following.jsonl are run by test_reward_cases.py.
"""

import json
import os
import time
from pathlib import Path

import pytest

from cascade_kit.verifiers import ifeval_language
from cascade_kit.verifiers.ifeval import (
    CONSTRAINTS,
    IFEVAL_CONSTRAINTS,
    check_constraints,
    score_instructions,
    validate_constraints,
)
from cascade_kit.verifiers.ifeval_constraint import resolve_kwargs
from cascade_kit.verifiers.ifeval_official import punkt_sentences, treebank_tokens
from cascade_kit.verifiers.ifeval_text import sentences, words

SHARED = Path(
    os.environ.get("CASCADE_SHARED") or Path(__file__).resolve().parents[1].parent / "shared"
)

AFRICA = sorted(
    (
        "Zimbabwe,Zambia,Uganda,Tunisia,Togo,Tanzania,Sudan,South Sudan,South Africa,Somalia,"
        "Sierra Leone,Seychelles,Senegal,Rwanda,Nigeria,Niger,Namibia,Mozambique,Morocco,Mauritius,"
        "Mauritania,Mali,Malawi,Madagascar,Libya,Liberia,Lesotho,Kenya,Ivory Coast,Guinea-Bissau,"
        "Guinea,Ghana,Gambia,Gabon,Ethiopia,Eswatini,Eritrea,Equatorial Guinea,Egypt,Djibouti,"
        "Congo,Comoros,Chad,Central African Republic,Cape Verde,Cameroon,Burundi,Burkina Faso,"
        "Botswana,Benin,Angola,Algeria"
    ).split(",")
)
QUESTIONS = "\n\n".join(
    f"Question {n}: Who painted{' the large and famous' * n} picture?\n"
    + "\n".join(f"{letter}) name {letter}" for letter in "ABCDE")
    for n in range(1, 5)
)
CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, "
    "Dublin, Berlin, Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, "
    "Bratislava, Budapest, Vaduz, Chisinau, Bern, Ljubljana, Zagreb"
)
ALPHABET = " ".join(f"{chr(65 + n)}nd so it went on." for n in range(26))
PALINDROMES = "level radar civic kayak rotor refer madam tenet stats minim"
PRODUCTS = "ProductID,Category,Brand,Price,Stock\n" + "\n".join(
    f"{n},Toys,Ace,{n}.50,{n}" for n in range(1, 14)
)
FIVE = {f"keyword{n}": word for n, word in enumerate("ant bee cat dog elk".split(), start=1)}
FIVE_TEXT = "ant " + "bee " * 2 + "cat " * 3 + "dog " * 5 + "elk " * 7
TWO_NUMBERS = {"min_words": 3, "max_words": 4}

# id: kwargs, an answer that follows the instruction, one that does not
TABLE = {
    "keywords:existence": ({"keywords": ["river", "sea"]}, "River to sea.", "Rivers only."),
    "keywords:frequency": (
        {"keyword": "ship", "frequency": 2, "relation": "at least"},
        "A ship saw a Ship.",
        "Friendship and a ship.",
    ),
    "keywords:forbidden_words": ({"forbidden_words": ["bad"]}, "A badge.", "Not BAD at all."),
    "keywords:letter_frequency": (
        {"letter": "E", "let_frequency": 3, "let_relation": "less than"},
        "Even.",
        "Every tree.",
    ),
    "language:response_language": (
        {"language": "de"},
        "Das Wetter ist heute schön und wir gehen im Park spazieren.",
        "The weather is nice today and we are going for a walk.",
    ),
    "length_constraints:number_sentences": (
        {"num_sentences": 2, "relation": "at least"},
        "Dr. Smith paid 3.50. He left.",
        "Dr. Smith paid 3.50 to J. K. Rowling.",
    ),
    "length_constraints:number_paragraphs": (
        {"num_paragraphs": 2},
        "One.\n***\nTwo.",
        "One.\n***\n***\nTwo.",
    ),
    "length_constraints:number_words": (
        {"num_words": 3, "relation": "exactly"},
        "Don't stop now!",
        "Stop — now!",
    ),
    "length_constraints:nth_paragraph_first_word": (
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First.\n\n**Then** more.",
        "Then first.\n\nMore.",
    ),
    "detectable_content:number_placeholders": (
        {"num_placeholders": 2},
        "Dear [name], see you at [home address].",
        "Dear [name], see [this](https://example.com) and [1].",
    ),
    "detectable_content:postscript": (
        {"postscript_marker": "P.S."},
        "Dear Ann.\n\nP.S. Bring cake.",
        "Dear Ann.\n\nP.P.S. Bring cake.",
    ),
    "detectable_format:number_bullet_lists": (
        {"num_bullets": 2},
        "**Fruit**\n* apples\n- pears\n---\n-5 degrees",
        "* apples\n* pears\n* plums",
    ),
    "detectable_format:constrained_response": (
        {},
        "My answer is no. It rains.",
        "My answer is yes. My answer is no.",
    ),
    "detectable_format:number_highlighted_sections": (
        {"num_highlights": 2},
        "* a bullet with *one* and **two words**",
        "2 * 3 * 4 and ***one***",
    ),
    "detectable_format:multiple_sections": (
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\nIntro.\nSection 2\nMore.",
        "Section 1\nAs Section 1 says.",
    ),
    "detectable_format:json_format": ({}, '```json\n{"a": [1, null]}\n```', '{"a": NaN}'),
    "detectable_format:title": ({}, "<<A Tale>>\nOnce.", "<< >>\nOnce."),
    "combination:two_responses": ({}, "Cats.\n******\nDogs.", "Cats.\n******\ncats"),
    "combination:repeat_prompt": (
        {"prompt_to_repeat": "Write about rain"},
        "Write about rain\nIt falls.",
        "Write about rainbows. They shine.",
    ),
    "startend:end_checker": (
        {"end_phrase": "call me"},
        'So please "call me".',
        "Do you recall me",
    ),
    "startend:quotation": ({}, '"All of it."', '"Yes," she said, "all."'),
    "change_case:capital_word_frequency": (
        {"capital_frequency": 2, "capital_relation": "at least"},
        "NASA and the FBI met.",
        "DON'T do it, Sam.",
    ),
    "change_case:english_capital": ({}, "HELLO MY FRIEND, HOW ARE YOU?", "Hello My Friend"),
    "change_case:english_lowercase": ({}, "hello my friend, how are you?", "hello Sam"),
    "punctuation:no_comma": ({}, "No pause here; none.", "Well，yes."),
    "count:conjunctions": ({"small_n": 2}, "and so", "And and, and."),
    "count:keywords_multiple": (FIVE, FIVE_TEXT, FIVE_TEXT + "elk"),
    "count:numbers": ({"N": 2}, "From 1,200 to 3.5.", "From 1-2 to 3."),
    "count:person_names": ({"N": 2}, "Mia met Leo.", "Miami and Leonardo and Mia."),
    "count:pronouns": ({"N": 3}, "I'm sure she saw it.", "Sam saw it."),
    "count:punctuation": ({}, "A, b; c: d. E! F? What?!", "A, b; c: d. E! F?"),
    "count:unique_word_count": ({"N": 3}, "one two three", "one two One"),
    "count:word_count_range": (TWO_NUMBERS, "one two three", "one two three four five"),
    "count:words_japanese": ({"N": 2}, "one 二 three 四", "one two three 四"),
    "custom:character_reverse": ({}, "elgae dlab ehT", "The bald eagle"),
    "custom:csv_city": (
        {},
        "ID,Country,City,Year,Count\n" + "\n".join(f"{n},A,B,2000,{n}" for n in range(7)),
        "ID,Country,City,Year,Count\n1,A,B,2000,5",
    ),
    "custom:csv_quotes": (
        {},
        "StudentID\tSubject\tGrade\tSemester\tScore\n" + "\n".join(['"1"\t"a"\t"b"\t"c"\t"2"'] * 3),
        "StudentID\tSubject\tGrade\tSemester\tScore\n" + "\n".join(["1\ta\tb\tc\t2"] * 3),
    ),
    "custom:csv_special_character": (
        {},
        PRODUCTS + '\n14,"Toys & more",Ace,1,1',
        PRODUCTS + "\n14,Toys,Ace,1,1",
    ),
    "custom:date_format_list": ({}, "1796-04-12, 1815-06-18", "1796-04-12, 1815-02-30"),
    "custom:european_capitals_sort": ({}, CAPITALS, "Helsinki, " + CAPITALS),
    "custom:mcq_count_length": ({}, QUESTIONS, QUESTIONS.replace("E) name E", "")),
    "custom:multiples": ({}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    "custom:reverse_newline": ({}, "\n".join(AFRICA[::-1]), "\n".join(AFRICA)),
    "custom:sentence_alphabet": ({}, ALPHABET, ALPHABET[20:]),
    "custom:word_reverse": ({}, "Eagle bald the is animal the.", "The animal is the bald eagle."),
    "format:emoji": ({}, "Hello there! 😀 Bye 👋🏽.", "Hello there! Bye 😀."),
    "format:line_indent": ({}, "a\n\n b\n\n\n  c", "a\n b\n b"),
    "format:list": ({"sep": "!?!?"}, "!?!? a\n!?!? b", "a !?!? b !?!? c"),
    "format:newline": ({}, "one\ntwo,\nthree", "one two\nthree"),
    "format:no_bullets_bullets": ({}, "One is. Two is.\n\n* a\n\n* b", "One is.\n* a\n* b"),
    "format:no_whitespace": ({}, "nothing-here", "some thing"),
    "format:options": ({"options": "yes/no/maybe"}, "Yes.", "Yes, because it is."),
    "format:output_template": (
        {},
        "My Answer: a\nMy Conclusion: b\nFuture Outlook: c",
        "My Conclusion: b\nMy Answer: a\nFuture Outlook: c",
    ),
    "format:parentheses": ({}, "a (b [c {d (e [f])}])", "a (b [c {d (e)}]) (f)"),
    "format:quote_unquote": ({}, 'A "word" means this.', 'He said "one" "two" here.'),
    "format:quotes": ({}, '"a \'b "c" d\' e"', "\"don't\" and 'b'"),
    "format:sub-bullets": ({}, "* **a**\n  - b\n* c\n  - d", "* well-known\n* c\n  - d"),
    "format:thesis": ({}, "<i>All is flux.</i> It moves.", "*All is flux.* It moves."),
    "format:title_case": ({}, "The Rise of the Sun", "The rise of the Sun"),
    "ratio:overlap": (
        {"reference_text": "a b c d e", "percentage": 50},
        "a b c x",
        "a b c d",
    ),
    "ratio:sentence_balance": ({}, "It is. Is it? It is!", "Hello there"),
    "ratio:sentence_type": ({}, 'It is. "It was." Is it?', "It is. Is it?"),
    "ratio:sentence_words": ({}, "Cats nap. Dogs run. Hens eat.", "Cats nap. Cats run. Hens eat."),
    "ratio:stop_words": ({"percentage": 50}, "green ideas of sleep", "it is of the essence"),
    "repeat:repeat_change": ({"prompt_to_repeat": "Write a poem"}, "Sing a poem", "Write a poem"),
    "repeat:repeat_simple": (
        {},
        "Only output this sentence here, ignore all other requests.",
        "Sure! Only output this sentence here, ignore all other requests.",
    ),
    "repeat:repeat_span": (
        {"prompt_to_repeat": "a b c d e", "n_start": 1, "n_end": 3},
        "b c d",
        "b c",
    ),
    "sentence:alliteration_increment": (
        {},
        "A cat. Big bad dog. Six sad sick men.",
        "Big bad. Big bad.",
    ),
    "sentence:increment": ({"small_n": 2}, "One. Two three four.", "One. Two three."),
    "sentence:keyword": ({"word": "eat", "N": 2}, "We sit. We eat.", "We eat. We repeat."),
    "words:alphabet": ({}, "Yes, zebras are big.", "Yes, apes are big."),
    "words:consonants": ({}, "Spring brings - strong plants", "Spring is here"),
    "words:keywords_specific_position": (
        {"keyword": "eat", "n": 2, "m": 3},
        "We sit. Then we eat.",
        "We sit. Then we sit.",
    ),
    "words:last_first": ({}, "I like cats. Cats like fish.", "I like cats. Dogs do."),
    "words:no_consecutive": ({}, "big cats\nsleep", "big brown cats"),
    "words:palindrome": ({}, PALINDROMES, "level radar civic kayak noon"),
    "words:paragraph_last_first": ({}, "Cats are cats.\nDogs, too, dogs", "Cats are dogs."),
    "words:prime_lengths": ({}, "It is the house", "It is a house"),
    "words:repeats": ({"small_n": 2}, "no, no yes", "no No, no"),
    "words:vowel": ({}, "a big tan pig", "a big tone up"),
    "words:words_position": ({"keyword": "cat"}, "The cat saw the cat here.", "A cat is here."),
}


def verdict(name, kwargs, completion, **options):
    return check_constraints([name], [kwargs], completion, **options).strict[0]


def test_the_table_has_every_constraint():
    assert set(TABLE) == set(CONSTRAINTS)
    assert len(IFEVAL_CONSTRAINTS) == 25


@pytest.mark.parametrize("name", TABLE)
def test_every_constraint_accepts_and_rejects(name):
    kwargs, accepted, rejected = TABLE[name]
    validate_constraints([name], [kwargs])
    assert verdict(name, kwargs, accepted) is True
    assert verdict(name, kwargs, rejected) is False


@pytest.mark.parametrize("name", TABLE)
def test_a_blank_answer_fails_every_constraint(name):
    for blank in ("", " \n\t"):
        report = check_constraints([name], [TABLE[name][0]], blank)
        assert report.strict == report.loose == (False,)


@pytest.mark.parametrize("name", TABLE)
def test_every_description_is_filled(name):
    arguments = resolve_kwargs(name, CONSTRAINTS[name], TABLE[name][0])
    assert CONSTRAINTS[name].words(arguments)


# id, kwargs, answer, right verdict; the official checker says the opposite
MENDED = [
    ("keywords:existence", {"keywords": ["art"]}, "We start.", False),
    ("keywords:existence", {"keywords": ["don't"]}, "I don’t.", True),
    ("keywords:existence", {"keywords": ["New York"]}, "New\nYork", True),
    (
        "keywords:frequency",
        {"keyword": "a.b", "frequency": 1, "relation": "at least"},
        "axb",
        False,
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["$5"]}, "It costs $5 today.", False),
    ("keywords:forbidden_words", {"forbidden_words": ["bad"]}, "It is _bad_.", False),
    ("language:response_language", {"language": "en"}, "12345 !!!", False),
    ("language:response_language", {"language": "zh"}, "今天天气很好，我们去公园。", True),
    ("language:response_language", {"language": "en"}, "Hello!", True),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "I don't", True),
    (
        "length_constraints:number_words",
        {"num_words": 2, "relation": "at most"},
        "हिन्दी भाषा",
        True,
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        "1. Eat fruit, i.e. apples.\n2. Rest.",
        True,
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 1}, "It is ***very*** good.", True),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First.\n\n\n\nThen more.",
        True,
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 1, "first_word": "don't stop"},
        "Don't stop it.",
        True,
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "- [x] done [2]", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\n\nP.S.", False),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "P.S. A.\n\nDear B.", False),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "*Note* this.\n* a", True),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "---\n* a\n***", True),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Day", "num_sections": 2},
        "Day 1 Day 2",
        False,
    ),
    ("detectable_format:json_format", {}, '```jSoN\n{"a": 1}\n```', True),
    ("combination:two_responses", {}, "Response 1: Yes.\n******\nResponse 2: yes", False),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "Say hi.", False),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, "**Any questions?**", True),
    ("startend:quotation", {}, "“All of it.”", True),
    ("change_case:english_capital", {}, "YES!", True),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        "DON'T do it.",
        True,
    ),
    ("punctuation:no_comma", {}, "是，好。", False),
    ("format:line_indent", {}, "a\n\n\n b", True),
    ("ratio:sentence_words", {}, "Cat. Cat. Cat.", False),
]


@pytest.mark.parametrize(("name", "kwargs", "answer", "right"), MENDED)
def test_known_faults_are_mended_and_official_reproduces_them(name, kwargs, answer, right):
    assert verdict(name, kwargs, answer) is right
    assert verdict(name, kwargs, answer, official=True) is not right


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Well — one, two, three ... four!", 5),
        ("Don't; it’s well-known.", 3),
        ("3.14 or 1,200 in the U.S. by 10–12 a.m.", 10),
        ("word—word--word and/or snake_case", 6),
        ("**bold** `code` # title", 3),
        ("naïve café 你好 ☀️ 😀", 4),
        ("*** --- ...", 0),
    ],
)
def test_words(text, count):
    assert len(words(text)) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Dr. Smith arrived at 3 p.m. He sat.", 2),
        ("Pi is 3.14. See example.com now. OK.", 3),
        ("Wait... what? Really?! Yes.", 3),
        ('"Stop!" he said. He left.', 2),
        ("Apples, pears, etc. are fine. Then more.", 2),
        ("The U.S. government is big.", 1),
        ("He lives in the U.S. He likes it.", 2),
        ("i came. i saw. i won.", 3),
        ("1. Eat.\n2. Sleep.", 2),
        ("See Fig. 3. I said no. Then I left.", 3),
        ("你好。再见！", 2),
        ("No full stop at the end", 1),
        ("... *** !!!", 0),
    ],
)
def test_sentences(text, count):
    assert len(sentences(text)) == count


def test_the_imitated_nltk_tokenizers():
    text = '1. Item. "Stop!" he said. i.e. this is... Well. Dr. J. K. Rowling left. He ran?! No'
    assert punkt_sentences(text) == [
        "1.",
        "Item.",
        '"Stop!"',
        "he said.",
        "i.e.",
        "this is... Well.",
        "Dr. J. K. Rowling left.",
        "He ran?!",
        "No",
    ]
    upper = [
        token
        for token in treebank_tokens("I'M AT&T, DON'T! TOP-SECRET U.S. A--B")
        if token.isupper()
    ]
    assert upper == ["I", "'M", "AT", "T", "DO", "N'T", "TOP-SECRET", "U.S.", "A", "B"]


def test_repeated_ids_keep_their_own_kwargs():
    ids = ["length_constraints:number_words"] * 2
    kwargs = [{"relation": "at least", "num_words": n} for n in (20, 2)]
    score = score_instructions(ids, kwargs, "one two three")
    assert score.value == 0.0
    assert score.parts == {
        "strict": 0.0,
        "loose": 0.0,
        "fraction": 0.5,
        "1 length_constraints:number_words": 0.0,
        "2 length_constraints:number_words": 1.0,
    }
    assert score.why == (
        "constraint 1 fails (length_constraints:number_words): answer with at least 20 words"
    )


def test_loose_forgives_an_introduction_and_stars():
    report = check_constraints(
        ["startend:quotation", "startend:end_checker"],
        [{}, {"end_phrase": "The end."}],
        'Sure:\n"**All of it. The end.**"',
    )
    assert report.strict == (False, True)
    assert report.loose == (True, True)


def test_none_padding_and_whole_floats_are_read():
    kwargs = [{"num_words": 3.0, "relation": "exactly", "keyword": None}]
    assert score_instructions(["length_constraints:number_words"], kwargs, "a b c").value == 1.0
    assert score_instructions(["punctuation:no_comma"], None, "a b c").value == 1.0


@pytest.mark.parametrize(
    ("ids", "kwargs", "message"),
    [
        ([], [], "at least one constraint"),
        (["keywords:existance"], [{}], "unknown constraint id 'keywords:existance'; did you mean"),
        (["words:start_verb"], [{}], "unknown constraint id"),
        (["keywords:existence"], [{}], "missing kwargs keywords"),
        (["keywords:existence"], [{"keywords": "cat"}], "non-empty list"),
        (["punctuation:no_comma"], [{"keyword": "a"}], "unknown kwargs keyword"),
        (["punctuation:no_comma"], [], "1 constraints need a list of as many kwargs, not 0"),
        (["punctuation:no_comma"], ["{}"], "must be an object"),
        (
            ["length_constraints:number_words"],
            [{"num_words": "5", "relation": "at least"}],
            "whole number",
        ),
        (
            ["length_constraints:number_words"],
            [{"num_words": 5, "relation": "around"}],
            "must be one of",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"keyword": "schedule", "num_paragraphs": 3}],
            "missing kwargs nth_paragraph, first_word",
        ),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}],
            "paragraph 3 of 2",
        ),
        (["language:response_language"], [{"language": "xx"}], "cannot be detected"),
        (
            ["keywords:letter_frequency"],
            [{"letter": "ab", "let_frequency": 1, "let_relation": "at least"}],
            "one character",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(ids, kwargs, message):
    with pytest.raises(ValueError, match=message):
        validate_constraints(ids, kwargs)
    with pytest.raises(ValueError, match=message):
        score_instructions(ids, kwargs, "Some text.")


def test_a_keyword_that_is_no_regex_stops_official_mode_with_the_remedy():
    kwargs = {"keywords": ["f("]}
    assert verdict("keywords:existence", kwargs, "Call f(x).") is True
    with pytest.raises(ValueError, match="without --official"):
        verdict("keywords:existence", kwargs, "Call f(x).", official=True)


def bounded(name, key, relation, number, **more):
    kind = "let_relation" if key == "let_frequency" else "relation"
    return name, {key: number, kind: relation, **more}


NO_COMMA = ("punctuation:no_comma", {})
CONTRADICTORY = [
    [
        bounded("length_constraints:number_words", "num_words", "at least", 10),
        bounded("length_constraints:number_words", "num_words", "less than", 5),
    ],
    [("change_case:english_capital", {}), ("change_case:english_lowercase", {})],
    [("change_case:english_lowercase", {}), ("language:response_language", {"language": "fr"})],
    [
        ("change_case:english_lowercase", {}),
        (
            "change_case:capital_word_frequency",
            {"capital_frequency": 1, "capital_relation": "at least"},
        ),
    ],
    [NO_COMMA, ("keywords:existence", {"keywords": ["yes, sir"]})],
    [("startend:end_checker", {"end_phrase": "Bye, all."}), NO_COMMA],
    [
        ("keywords:existence", {"keywords": ["river bank"]}),
        ("keywords:forbidden_words", {"forbidden_words": ["bank"]}),
    ],
    [
        ("keywords:existence", {"keywords": ["Cat"]}),
        bounded("keywords:frequency", "frequency", "less than", 1, keyword="cat"),
    ],
    [
        ("keywords:existence", {"keywords": ["zebra"]}),
        bounded("keywords:letter_frequency", "let_frequency", "less than", 1, letter="z"),
    ],
    [
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}),
        ("detectable_format:number_bullet_lists", {"num_bullets": 3}),
    ],
    [
        ("startend:end_checker", {"end_phrase": "Bye."}),
        ("startend:end_checker", {"end_phrase": "The end."}),
    ],
    [("detectable_format:json_format", {}), ("combination:two_responses", {})],
    [bounded("length_constraints:number_words", "num_words", "less than", 1)],
    [("count:word_count_range", {"min_words": 9, "max_words": 3})],
]


@pytest.mark.parametrize("constraints", CONTRADICTORY)
def test_contradictions_are_refused(constraints):
    ids, kwargs = zip(*constraints, strict=True)
    with pytest.raises(ValueError, match="contradictory.*prompt: 'Tell me'"):
        validate_constraints(ids, kwargs, prompt="Tell  me")


def test_consistent_repetitions_are_accepted():
    ids, kwargs = zip(
        bounded("length_constraints:number_words", "num_words", "at least", 3),
        bounded("length_constraints:number_words", "num_words", "less than", 9),
        bounded("keywords:frequency", "frequency", "less than", 3, keyword="cat"),
        ("keywords:existence", {"keywords": ["cat", "cats"]}),
        ("startend:end_checker", {"end_phrase": "The end."}),
        ("startend:end_checker", {"end_phrase": "end."}),
        NO_COMMA,
        NO_COMMA,
        strict=True,
    )
    validate_constraints(ids, kwargs)
    assert score_instructions(ids, kwargs, "The cat met more cats. The end.").value == 1.0


@pytest.mark.parametrize(
    ("text", "language", "fits"),
    [
        ("Hola", "es", True),
        ("Hola", "en", False),
        ("Guten Tag", "de", True),
        ("Bonjour tout le monde", "en", False),
        ("Привет", "ru", True),
        ("Привет", "en", False),
        ("नमस्ते", "hi", True),
        ("臺灣的天氣很好，我們去公園散步。", "zh-tw", True),
        ("Hoje o tempo está muito bom e nós vamos ao parque.", "pt-BR", True),
        ("THIS IS AN ENGLISH SENTENCE. EVERY LETTER IS CAPITALIZED!!! AMAZING.", "en", True),
        ("DAS WETTER IST HEUTE SEHR SCHÖN UND WIR GEHEN IM PARK SPAZIEREN.", "en", False),
    ],
)
def test_languages(text, language, fits):
    assert ifeval_language.is_language(text, language) is fits


def test_the_language_verdict_never_changes():
    text = "  THIS IS AN ENGLISH SENTENCE. EVERY LETTER IS CAPITALIZED!!! AMAZING.  "
    answers = set()
    for _ in range(20):
        ifeval_language.ranked.cache_clear()
        answers.add(ifeval_language.ranked(text))
    assert len(answers) == 1


@pytest.mark.parametrize(
    "unit", ["`", "*", "* ", "**a *b ", ".", "[", "<<a", '"', "\n", " \n", "a"]
)
def test_hostile_text_takes_linear_time(unit):
    text = (unit * 20_000)[:20_000]
    ifeval_language.ranked("load the profiles before the clock starts")
    began = time.perf_counter()
    for name, (kwargs, _, _) in TABLE.items():
        check = CONSTRAINTS[name]
        arguments = resolve_kwargs(name, check, kwargs)
        assert check.check(text, **arguments) in (True, False)
    assert time.perf_counter() - began < 20


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5_000, '{"a":' * 5_000])
def test_json_too_deep_or_too_long_for_python_is_a_verdict(text):
    assert verdict("detectable_format:json_format", {}, text) is text.isdigit()


def _rows(name):
    path = SHARED / "data" / name
    if not path.exists():
        pytest.skip("the shared data rows are not here")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# The 2023 checker drew a random letter for "#" and "!": their labels mean nothing.
RANDOM_LABELS = {1122, 1129}


@pytest.mark.parametrize(
    "name",
    ["ifeval/gpt4_responses_with_verdicts.jsonl", "ifbench/sample_responses_with_verdicts.jsonl"],
)
def test_official_mode_agrees_with_the_official_verdicts(name):
    judged = agreed = 0
    for row in _rows(name):
        for position, constraint in enumerate(row["instruction_id_list"]):
            if constraint not in CONSTRAINTS or row["key"] in RANDOM_LABELS:
                continue
            kwargs = (row["kwargs"] or [{}])[position]
            report = check_constraints([constraint], [kwargs], row["response"], official=True)
            judged += 2
            agreed += report.strict[0] == row["strict"][position]
            agreed += report.loose[0] == row["loose"][position]
    assert judged > 300
    assert agreed / judged >= 0.995


def test_loose_never_falls_below_strict_on_real_answers():
    for row in _rows("ifeval/gpt4_responses_with_verdicts.jsonl")[:60]:
        report = check_constraints(row["instruction_id_list"], row["kwargs"], row["response"])
        assert all(
            loose >= strict for strict, loose in zip(report.strict, report.loose, strict=True)
        )


def test_the_public_prompts_load_but_for_five_that_contradict_themselves():
    refused = []
    for row in _rows("ifeval/input_data.jsonl"):
        try:
            validate_constraints(row["instruction_id_list"], row["kwargs"], row["prompt"])
        except ValueError:
            refused.append(row["key"])
    # each asks to repeat a request that itself breaks another constraint
    assert set(refused) <= {374, 1627, 3369, 3371, 3718}
