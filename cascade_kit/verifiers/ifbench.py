"""The IFBench constraint types that can be decided without a tagger or a large word list.

56 of 58: words:odd_even_syllables needs a pronouncing dictionary and words:start_verb a part-of-
speech tagger. The checks are in ifbench_words.py and ifbench_format.py. The custom: types belong to
one prompt each and judge the form of its answer.
"""

from collections.abc import Callable, Mapping
from functools import partial

from cascade_kit.verifiers import ifbench_format as form
from cascade_kit.verifiers import ifbench_words as text
from cascade_kit.verifiers.ifeval_constraint import Constraint


def _both(check: Callable[..., bool], required: Mapping[str, str], description: str) -> Constraint:
    """A constraint whose check takes `official` itself."""
    return Constraint(check, required, description, partial(check, official=True))


_KEYWORDS = {f"keyword{number}": "text" for number in range(1, 6)}

IFBENCH_CONSTRAINTS: Mapping[str, Constraint] = {
    "count:conjunctions": _both(
        text.conjunctions, {"small_n": "count"}, "use {small_n} different conjunctions"
    ),
    "count:keywords_multiple": Constraint(
        text.keywords_multiple,
        _KEYWORDS,
        "use {keyword1} once, {keyword2} twice, {keyword3} three, {keyword4} five and {keyword5} "
        "seven times",
    ),
    "count:numbers": _both(text.numbers, {"N": "count"}, "include exactly {N} numbers"),
    "count:person_names": Constraint(
        text.person_names, {"N": "count"}, "mention at least {N} of the listed names"
    ),
    "count:pronouns": _both(text.pronouns, {"N": "count"}, "include at least {N} pronouns"),
    "count:punctuation": Constraint(
        text.punctuation, {}, "use every standard punctuation mark and the interrobang"
    ),
    "count:unique_word_count": _both(
        text.unique_word_count, {"N": "count"}, "use at least {N} unique words"
    ),
    "count:word_count_range": _both(
        text.word_count_range,
        {"min_words": "count", "max_words": "count"},
        "write between {min_words} and {max_words} words",
    ),
    "count:words_japanese": _both(
        text.words_japanese, {"N": "positive"}, "put every {N}th word in Japanese"
    ),
    "custom:character_reverse": Constraint(
        form.character_reverse, {}, "answer in reverse order by letter"
    ),
    "custom:csv_city": _both(form.csv_city, {}, "write CSV of cities with seven rows"),
    "custom:csv_quotes": Constraint(
        form.csv_quotes, {}, "write tab-separated rows with every field in quotes"
    ),
    "custom:csv_special_character": Constraint(
        form.csv_special_character, {}, "write CSV with a special character in quotes"
    ),
    "custom:date_format_list": Constraint(
        form.date_format_list, {}, "list dates as YYYY-MM-DD only"
    ),
    "custom:european_capitals_sort": Constraint(
        form.european_capitals_sort, {}, "list the northern capitals of Europe by latitude"
    ),
    "custom:mcq_count_length": Constraint(
        form.mcq_count_length, {}, "write four ever longer questions with five options"
    ),
    "custom:multiples": Constraint(form.multiples, {}, "print the multiples of 7 from 10 to 50"),
    "custom:reverse_newline": Constraint(
        form.reverse_newline, {}, "list the countries of Africa from Z to A, one a line"
    ),
    "custom:sentence_alphabet": _both(
        form.sentence_alphabet, {}, "write 26 sentences that begin with a to z"
    ),
    "custom:word_reverse": Constraint(form.word_reverse, {}, "answer in reverse order by word"),
    "format:emoji": _both(form.emoji, {}, "end every sentence with an emoji"),
    "format:line_indent": _both(form.line_indent, {}, "indent every line further"),
    "format:list": _both(form.marked_list, {"sep": "text"}, "mark the items of a list with {sep}"),
    "format:newline": Constraint(form.newline, {}, "write each word on a new line"),
    "format:no_bullets_bullets": _both(
        form.no_bullets_bullets, {}, "write two sentences and then at least two bullets"
    ),
    "format:no_whitespace": _both(form.no_whitespace, {}, "use no whitespace"),
    "format:options": _both(
        form.options, {"options": "text"}, "answer with one of {options} and nothing else"
    ),
    "format:output_template": _both(
        form.output_template, {}, "follow the template My Answer, My Conclusion, Future Outlook"
    ),
    "format:parentheses": Constraint(form.parentheses, {}, "nest brackets five deep"),
    "format:quote_unquote": _both(
        form.quote_unquote, {}, "follow every quoted phrase with an explanation"
    ),
    "format:quotes": _both(form.quotes, {}, "nest quotes three deep"),
    "format:sub-bullets": _both(form.sub_bullets, {}, "give every bullet * a sub-bullet -"),
    "format:thesis": _both(form.thesis, {}, "begin with a thesis in HTML italics"),
    "format:title_case": _both(form.title_case, {}, "write in title case"),
    "ratio:overlap": _both(
        text.overlap,
        {"reference_text": "text", "percentage": "percentage"},
        "keep a trigram overlap of {percentage}% with the reference",
    ),
    "ratio:sentence_balance": _both(
        text.sentence_balance, {}, "write as many statements as questions as exclamations"
    ),
    "ratio:sentence_type": _both(text.sentence_type, {}, "write two statements for each question"),
    "ratio:sentence_words": _both(
        text.sentence_words, {}, "write three sentences of one length with all different words"
    ),
    "ratio:stop_words": Constraint(
        text.stop_words, {"percentage": "percentage"}, "use at most {percentage}% stop words"
    ),
    "repeat:repeat_change": _both(
        text.repeat_change,
        {"prompt_to_repeat": "text"},
        "repeat the request with another first word",
    ),
    "repeat:repeat_simple": Constraint(
        text.repeat_simple, {}, "output the instruction's sentence only"
    ),
    "repeat:repeat_span": _both(
        text.repeat_span,
        {"prompt_to_repeat": "text", "n_start": "count", "n_end": "count"},
        "copy the words {n_start} to {n_end} of the request",
    ),
    "sentence:alliteration_increment": _both(
        text.alliteration_increment, {}, "alliterate longer in each sentence"
    ),
    "sentence:increment": _both(
        text.increment, {"small_n": "count"}, "use {small_n} words more in each sentence"
    ),
    "sentence:keyword": _both(
        text.keyword_in_sentence,
        {"word": "text", "N": "positive"},
        "use {word!r} in sentence {N}",
    ),
    "words:alphabet": _both(text.alphabet, {}, "begin the words with a, b, c, ..."),
    "words:consonants": _both(text.consonants, {}, "use words with two consonants in a row only"),
    "words:keywords_specific_position": _both(
        text.keywords_specific_position,
        {"keyword": "text", "n": "positive", "m": "positive"},
        "make {keyword!r} word {m} of sentence {n}",
    ),
    "words:last_first": _both(
        text.last_first, {}, "begin each sentence with the last word of the one before"
    ),
    "words:no_consecutive": _both(
        text.no_consecutive, {}, "let no two neighbouring words share an initial"
    ),
    "words:palindrome": _both(text.palindrome, {}, "include ten palindromes of five letters"),
    "words:paragraph_last_first": _both(
        text.paragraph_last_first, {}, "end each paragraph with its first word"
    ),
    "words:prime_lengths": _both(text.prime_lengths, {}, "use words of prime length only"),
    "words:repeats": _both(
        text.repeats, {"small_n": "positive"}, "use no word more than {small_n} times"
    ),
    "words:vowel": Constraint(text.vowel, {}, "write one paragraph with three kinds of vowels"),
    "words:words_position": _both(
        text.words_position,
        {"keyword": "text"},
        "make {keyword!r} the second and the last but one word",
    ),
}
