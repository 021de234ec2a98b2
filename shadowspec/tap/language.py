"""The language of a prompt, as a slice label: from the script of its letters, else from its commonest words.

Drafts are accepted less in languages with little training data, and tokenizers cut some scripts into more tokens.  The
rule is a table and not a trained model: the same text always has the same label, an operator can check a slice by
reading, and a record costs some microseconds.  No text is stored; a label is one of LANGUAGES.

1. Where a script other than Latin has at least MIN_SCRIPT_SHARE of the letters at the beginning of the text, the script
   names the language (kana beside Chinese characters: Japanese), or its words do (Cyrillic, Arabic).
2. Else the commonest words of each language (articles, pronouns, prepositions) do: each one found counts one for its
   language, or a share where several have it.  The best one names the language if it has enough and leads.
3. Otherwise it is UNDETERMINED, as are texts without letters, and requests with only token ids.

In a conversation the newest message with a language names it.
"""

# ruff: noqa: RUF001 - this module is about letters of other scripts
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

LANGUAGE: Final = "language"  # the label
UNDETERMINED: Final = "und"  # as in ISO 639-2
HEAD_CHARACTERS: Final = 300  # the part of a text that is read: some fifty words
MIN_SCRIPT_SHARE: Final = 0.3  # of the letters; below, another script's words are quoted in the text
MIN_KANA_SHARE: Final = 0.05  # of kana and Chinese characters together: Chinese has none
MIN_SCORE: Final = 1.0  # one word that no other language has, or two that one other has too
MIN_WORD_SHARE: Final = 0.08  # of the different words: source text and lists hold few by chance
MIN_LEAD: Final = 0.5  # over the second, so that words shared by close languages decide nothing

# No Latin word of one letter, for source text has variables of that name.
_WORDS: Final[Mapping[str, str]] = {
    "en": "the of and to is that for you it with as are this be at or from have not by but what which how why when "
    "can will your my an we they he she his her there their would should could does did please write give me",
    "de": "der die das und ist nicht ein eine einen einem einer ich du sie wir ihr zu mit auf für von dem den des "
    "im sich auch als an wie was wird werden kann bei oder aber wenn nach wo warum bitte mir mein sind haben "
    "hat",
    "fr": "le la les des un une et est en que qui dans pour pas sur avec ce cette ces il elle nous vous je au aux "
    "du de ne se sont plus ou mais comment pourquoi quel quelle être avoir fait mon ma mes votre leur",
    "es": "el la los las un una es en que de del por para con no se su sus lo como más pero al este esta son qué "
    "cómo cuál dónde cuando muy mi tu yo nosotros ser está hay puede sobre entre también escribe",
    "pt": "os as um uma é em que de do da dos das por para com não se seu sua no na nos nas ao como mais mas ou são "
    "você eu ele ela isso este esta muito qual quando onde também está foi ser pode sobre entre",
    "it": "il lo la gli le un una uno è di che per con non si su del della dei delle nel nella sono come più ma al "
    "alla da in questo questa cosa perché quando dove mi ti ci anche essere ha ho può mia tuo",
    "nl": "de het een en van is dat in op te met voor niet zijn aan er ook als bij door om of maar uit naar ik je "
    "jij we wij hij zij wat hoe waarom wanneer kan worden wordt heeft mijn deze dit geen nog",
    "sv": "och att det som en ett är på för med av till den inte om jag du vi han hon de var har kan ska men eller "
    "från vad hur varför när min din så mycket också skulle alla detta",
    "da": "og at det som en et er på for med af til den ikke om jeg du vi han hun de var har kan skal men eller fra "
    "hvad hvordan hvorfor hvornår min din så meget også skulle alle dette blev",
    "pl": "na do się nie to jest że jak po co za od dla przez tak ale czy lub oraz są być ma był który która które "
    "ten ta te tego gdzie kiedy dlaczego proszę mi moje ich jego",
    "cs": "na se je že to do pro jako ale nebo jsou být má byl který která které ten ta tento kde kdy proč jak jaký "
    "jaká jaké co si jsem jsme by už také není při podle mi",
    "ro": "și în de la cu pe că nu este un din pentru care mai sau sunt ce cum se au fost lui ei acest această unde "
    "când prin dar să îmi eu noi are despre fi",
    "hu": "az és hogy nem is egy van meg de ez ha mint csak volt el ki mi már kell lehet én te ők hogyan miért "
    "mikor vagy minden olyan kérem lesz nagyon",
    "fi": "ja on ei se että hän oli mutta ovat kun niin myös tai kuin joka mitä miten miksi missä minä sinä me he "
    "tämä voi olla jos vain ole sen ne minun",
    "tr": "ve bir bu da de için ile ne çok daha gibi en mi var olarak olan ben sen biz siz nasıl neden nerede kadar "
    "ama veya değil her şey sonra bana lütfen",
    "vi": "và là của có không cho một những các được trong với người này đã để khi tôi bạn như thế nào gì ở từ đến "
    "cũng nhưng hay về ra làm rất hãy",
    "id": "yang dan di untuk dengan ini itu tidak dari dalam akan pada adalah ke saya anda kamu kita mereka bisa "
    "dapat atau juga oleh karena seperti apa bagaimana mengapa kapan ada sudah tolong",
    "ru": "и в не на что я с он как это по но из у за от для о же вы мы ты так его только мне было когда или если "
    "где почему есть быть она они все может",
    "uk": "і в не на що я з він як це по але із у за від для про ви ми ти так його тільки мені було коли або якщо "
    "де чому є бути вона вони все може та",
    "bg": "и в не на че аз с той как това по но от за са се да си към или ако къде защо има съм ще беше тя те "
    "всичко може един които",
    "ar": "في من على إلى أن ما هذا هذه التي الذي كان لا هو هي عن مع كل أو ثم قد لم كيف لماذا متى أين هل بين بعد عند",
    "fa": "در از به که را این با است و برای آن یک خود تا کرد بر هم نیز می ها شده چه چرا چگونه اگر یا من ما",
    "ur": "کے میں کی ہے کا اور سے کو پر یہ کہ نے ہیں کر تھا کیا نہیں ایک ہو جو وہ کیسے کیوں",
}
_ALPHABETS: Final[Mapping[str, tuple[str, ...]]] = {  # of the words above, but for Latin
    "cyrillic": ("ru", "uk", "bg"),
    "arabic": ("ar", "fa", "ur"),
}
_NAMED_BY_SCRIPT: Final = ("el", "he", "hi", "bn", "ta", "te", "th", "ka", "ko", "zh", "ja")
LANGUAGES: Final = (*_WORDS, *_NAMED_BY_SCRIPT, UNDETERMINED)

# Scripts by code points from first to last; letters of languages that share one are distinguished by their words.
_SCRIPTS: Final = (
    (0x0370, 0x03FF, "el"), (0x0400, 0x052F, "cyrillic"), (0x0590, 0x05FF, "he"), (0x0600, 0x06FF, "arabic"),
    (0x0900, 0x097F, "hi"), (0x0980, 0x09FF, "bn"), (0x0B80, 0x0BFF, "ta"), (0x0C00, 0x0C7F, "te"),
    (0x0E00, 0x0E7F, "th"), (0x10A0, 0x10FF, "ka"), (0x1100, 0x11FF, "ko"), (0x3041, 0x30FF, "kana"),
    (0x3400, 0x4DBF, "zh"), (0x4E00, 0x9FFF, "zh"), (0xAC00, 0xD7A3, "ko"),
)  # fmt: skip
_SCRIPT_OF: Final = {point: name for first, last, name in _SCRIPTS for point in range(first, last + 1)}
_WORD: Final = re.compile(r"[^\W\d_]+")


def _weights() -> dict[str, tuple[tuple[str, float], ...]]:
    """Each word with its languages, and its score for each of them."""
    languages_by_word: dict[str, list[str]] = defaultdict(list)
    for language, words in _WORDS.items():
        for word in words.split():
            languages_by_word[word].append(language)
    return {
        word: tuple((language, 1.0 / len(languages)) for language in languages)
        for word, languages in languages_by_word.items()
    }


_WEIGHTS: Final = _weights()


def language(texts: Sequence[str], *, declared: str | None = None) -> str:
    """The language of a request, one of LANGUAGES.

    Args:
        texts: instructions and user messages in order; empty where only token ids are known.
        declared: the record's label; used if it is one of LANGUAGES, else without effect.
    """
    if declared is not None and declared in LANGUAGES:
        return declared
    languages = (language_of_text(text) for text in reversed(texts))
    return next((candidate for candidate in languages if candidate != UNDETERMINED), UNDETERMINED)


def language_of_text(text: str) -> str:
    """The language of one text by the rules of this module."""
    head = text[:HEAD_CHARACTERS]
    if not head.isascii():
        script = _script(head)
        if script is not None:
            return _by_words(head, _ALPHABETS[script]) if script in _ALPHABETS else script
    return _by_words(head)


def _script(head: str) -> str | None:
    """The script that is not Latin and has the most of the letters, if it has enough of them."""
    counts: dict[str, int] = defaultdict(int)
    num_letters = 0
    for character in head:
        if character.isalpha():
            num_letters += 1
            if (script := _SCRIPT_OF.get(ord(character))) is not None:
                counts[script] += 1
    kana = counts.pop("kana", 0)
    if kana and kana >= MIN_KANA_SHARE * (kana + counts["zh"]):
        counts["ja"] = kana + counts.pop("zh")
    best = max(counts, key=lambda script: counts[script], default=None)
    return best if best is not None and counts[best] >= MIN_SCRIPT_SHARE * num_letters else None


def _by_words(head: str, among: Sequence[str] = ()) -> str:
    """The language with most of its words in the text; `among` some (empty: all)."""
    scores: dict[str, float] = defaultdict(float)
    words = set(_WORD.findall(head.lower()))
    for word in words:
        for language, weight in _WEIGHTS.get(word, ()):
            scores[language] += weight
    ranked = sorted(
        ((score, language) for language, score in scores.items() if not among or language in among), reverse=True
    )
    if not ranked or ranked[0][0] < max(MIN_SCORE, MIN_WORD_SHARE * len(words)):
        return UNDETERMINED
    leads = len(ranked) == 1 or ranked[0][0] - ranked[1][0] >= MIN_LEAD
    return ranked[0][1] if leads else UNDETERMINED
