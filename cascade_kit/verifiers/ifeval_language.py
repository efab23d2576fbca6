"""Which language a text is in: langdetect with a fixed seed, and word lists for short texts.

langdetect draws random samples (seeded here, so a verdict never changes), was built from running
lower-case text (so all-capital text is lowered as well) and is unreliable below some forty letters
("Hello" is Finnish to it, "yes" Turkish). There a few very common words decide; where these say
nothing, a text under twenty letters is judged by its script alone.
"""

import re
import threading
import unicodedata
from functools import lru_cache

from cascade_kit.verifiers.ifeval_text import word_set

LANGUAGES = word_set(
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr "
    "ne nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw"
)
_ALIASES = {"iw": "he", "in": "id", "nb": "no", "nn": "no", "fil": "tl"}
_SCRIPTS = {
    "CYRILLIC": "bg mk ru uk",
    "ARABIC": "ar fa ur",
    "DEVANAGARI": "hi mr ne",
    "BENGALI": "bn",
    "GREEK": "el",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HEBREW": "he",
    "KANNADA": "kn",
    "MALAYALAM": "ml",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "HANGUL": "ko",
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "CJK": "zh-cn zh-tw ja",
}
_COMMON_WORDS = {
    "en": "the a an and or not is are was be i you we he she it they this that of to in on for "
    "with my your our have has do does can will hello hi yes no ok okay please thanks thank good "
    "morning what how who where why here there like all",
    "de": "der die das und oder nicht ist sind war ich du wir er sie es ein eine von zu in auf "
    "für mit mein dein haben hat kann wird hallo ja nein bitte danke gut guten morgen tag was wie",
    "fr": "le la les un une et ou ne pas est sont je tu nous il elle vous ce cette de du des à "
    "dans pour avec mon votre bonjour salut oui non merci beaucoup bien tout monde que qui où",
    "es": "el la los las un una y o no es son yo tú nosotros él ella este esta de del a en para "
    "con mi su hola sí gracias bueno buenos buenas días amigo que cómo qué quién dónde todo muy",
    "it": "il lo la i gli le un una e o non è sono io tu noi lui lei questo questa di del a in "
    "per con mio tuo ciao sì no grazie buono buongiorno che come chi dove tutto molto bene",
    "pt": "o a os as um uma e ou não é são eu tu nós ele ela este esta de do da em para com meu "
    "seu olá oi sim obrigado obrigada bom boa dia que como quem onde tudo muito bem você",
    "nl": "de het een en of niet is zijn was ik jij wij hij zij dit dat van naar in op voor met "
    "mijn hallo ja nee dank bedankt goed goede morgen wat hoe wie waar alles alstublieft",
    "sv": "den det en ett och eller inte är var jag du vi han hon de detta av till i på för med "
    "min hej ja nej tack god bra vad hur vem allt",
    "da": "den det en et og eller ikke er var jeg du vi han hun de dette af til i på for med min "
    "hej ja nej tak god godt hvad hvordan hvem hvor alt",
    "no": "den det en et og eller ikke er var jeg du vi han hun de dette av til i på for med min "
    "hei ja nei takk god godt hva hvordan hvem hvor alt",
    "pl": "i lub nie jest są był ja ty my on ona to ten ta z do w na dla mój cześć tak dziękuję "
    "dobry dzień co jak kto gdzie wszystko proszę",
    "tr": "ve veya değil bir bu şu ben sen biz o onlar için ile merhaba evet hayır teşekkür iyi "
    "ne nasıl kim nerede her çok lütfen",
    "fi": "ja tai ei on ovat oli minä sinä me hän se tämä hei kyllä kiitos hyvä hyvää mitä miten "
    "kuka missä kaikki ole",
    "sw": "na au si ni ya wa kwa mimi wewe sisi yeye hii hilo habari jambo ndiyo hapana asante "
    "nzuri nini nani wapi yote karibu",
    "vi": "và hoặc không là tôi bạn chúng anh chị này của cho với xin chào vâng cảm ơn tốt gì",
    "id": "dan atau tidak adalah saya kamu kami dia ini itu dari ke di untuk dengan halo ya "
    "terima kasih baik apa bagaimana siapa mana semua selamat pagi",
}
_LOCK = threading.Lock()


def codes(language: str) -> tuple[str, ...]:
    """The langdetect codes that `language` stands for: "zh" both Chinese ones, "pt-br" pt."""
    code = language.strip().lower().replace("_", "-")
    base = code.split("-")[0]
    if code == "zh":
        return ("zh-cn", "zh-tw")
    if base == "zh":  # zh-hans, zh-hant, zh-hk, ...
        return ("zh-tw",) if re.search(r"hant|tw|hk|mo", code) else ("zh-cn",)
    base = _ALIASES.get(base, base)
    if base not in LANGUAGES:
        raise ValueError(f"language {language!r} cannot be detected: use an ISO 639-1 code")
    return (base,)


@lru_cache(maxsize=256)
def ranked(text: str) -> tuple[tuple[str, float], ...]:
    """langdetect's (code, probability) for `text`, best first; () where it finds no letters."""
    import langdetect

    with _LOCK:  # the first call loads the profiles into a module global
        langdetect.DetectorFactory.seed = 0
        try:
            return tuple((guess.lang, guess.prob) for guess in langdetect.detect_langs(text))
        except langdetect.LangDetectException:  # its answer to a text without letters
            return ()


def is_language(text: str, language: str) -> bool:
    """Whether `text` as a whole is in `language`; a text without letters is in none."""
    wanted = codes(language)
    letters = [character for character in text if character.isalpha()]
    if not letters or not _script_fits(letters, wanted):
        return False
    capitals = 2 * sum(letter.isupper() for letter in letters) > len(letters)
    for reading in (text.lower(), text) if capitals else (text,):
        guesses = ranked(reading)
        if guesses and guesses[0][0] in wanted:
            return True
    return len(letters) < 40 and _short_text_fits(text, len(letters), wanted)


def _script_fits(letters: list[str], wanted: tuple[str, ...]) -> bool:
    """Whether at least one letter in three is of a script that a wanted language is written in."""
    expected = {script for script, names in _SCRIPTS.items() if set(names.split()) & set(wanted)}
    expected = expected or {"LATIN"}
    fitting = sum(unicodedata.name(x, "").split(" ")[0].split("-")[0] in expected for x in letters)
    return 3 * fitting >= len(letters)


def _short_text_fits(text: str, letter_count: int, wanted: tuple[str, ...]) -> bool:
    tokens = re.findall(r"[^\W\d_]+", text.lower())
    hits = {
        code: sum(token in known.split() for token in tokens)
        for code, known in _COMMON_WORDS.items()
    }
    own = max((hits.get(code, 0) for code in wanted), default=0)
    if max(hits.values()) > 0:
        return own == max(hits.values())
    return letter_count < 20
