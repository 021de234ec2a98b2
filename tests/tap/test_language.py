"""The language label: what names it, what leaves it open, and that it is there only where it is asked for."""

# ruff: noqa: RUF001, E501 - letters of other scripts, and sentences on one line each
from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shadowspec.tap.admission import Admitted
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.language import LANGUAGE, LANGUAGES, UNDETERMINED, language, language_of_text
from tests.tap.mirror import RULE, chat, fates, first_only

LABELLED = Path(__file__).parents[1] / "data" / "labelled_prompts.jsonl"
BY_LANGUAGE = replace(first_only(RULE), slice_by=("prompt_class", LANGUAGE))

# Article 1 of the Universal Declaration of Human Rights (public domain), or how it begins.
DECLARATION = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience and should act towards one another in a spirit of brotherhood.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de consciência, devem agir uns para com os outros em espírito de fraternidade.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione e di coscienza e devono agire gli uni verso gli altri in spirito di fratellanza.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd met verstand en geweten, en behoren zich jegens elkander in een geest van broederschap te gedragen.",
    "sv": "Alla människor är födda fria och lika i värde och rättigheter. De är utrustade med förnuft och samvete och bör handla gentemot varandra i en anda av broderskap.",
    "da": "Alle mennesker er født frie og lige i værdighed og rettigheder. De er udstyret med fornuft og samvittighed, og de bør handle mod hverandre i en broderskabets ånd.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa.",
    "cs": "Všichni lidé rodí se svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni rozumem a svědomím a mají spolu jednat v duchu bratrství.",
    "ro": "Toate ființele umane se nasc libere și egale în demnitate și în drepturi. Ele sunt înzestrate cu rațiune și conștiință și trebuie să se comporte unele față de altele în spiritul fraternității.",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Az emberek, ésszel és lelkiismerettel bírván, egymással szemben testvéri szellemben kell hogy viseltessenek.",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan. Heille on annettu järki ja omatunto, ja heidän on toimittava toisiaan kohtaan veljeyden hengessä.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi con người đều được tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu.",
    "id": "Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama. Mereka dikaruniai akal dan hati nurani dan hendaknya bergaul satu sama lain dalam semangat persaudaraan.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом і совістю і повинні діяти у відношенні один до одного в дусі братерства.",
    "bg": "Всички хора се раждат свободни и равни по достойнство и права. Те са надарени с разум и съвест и следва да се отнасят помежду си в дух на братство.",
    "ar": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم بعضاً بروح الإخاء.",
    "fa": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند. همه دارای عقل و وجدان هستند و باید نسبت به یکدیگر با روح برادری رفتار کنند.",
    "ur": "تمام انسان آزاد اور حقوق و عزت کے اعتبار سے برابر پیدا ہوئے ہیں۔ انہیں ضمیر اور عقل ودیعت ہوئی ہے۔ اس لیے انہیں ایک دوسرے کے ساتھ بھائی چارے کا سلوک کرنا چاہیئے۔",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "bn": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "ta": "மனிதப் பிறிவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "te": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు.",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "ka": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
}


def test_every_language_is_known_by_a_sentence_or_two() -> None:
    assert {name: language_of_text(text) for name, text in DECLARATION.items()} == {name: name for name in DECLARATION}
    assert set(DECLARATION) == set(LANGUAGES) - {UNDETERMINED}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("What is the capital of France?", "en"),
        ("Wie heißt die Hauptstadt von Frankreich?", "de"),
        ("Quelle est la capitale de l'Allemagne ?", "fr"),
        ("Translate 你好 to English, please.", "en"),  # quoted
        ("用 Python 写一个快速排序", "zh"),  # with a name in Latin letters
        ("東京の天気を教えて", "ja"),
        ("Напиши мне стихотворение о весне", "ru"),
        ("Напиши мені вірш про весну", "uk"),
        ("def f(x):\n    # return the sum of the list\n    return sum(x)", "en"),
        ("x = [1, 2, 3]; y = x[0]; e = y", UNDETERMINED),
        ("12345", UNDETERMINED),
        ("ok", UNDETERMINED),
        ("", UNDETERMINED),
    ],
)
def test_short_texts(text: str, name: str) -> None:
    assert language_of_text(text) == name


def test_the_newest_message_that_has_a_language_names_it() -> None:
    german = DECLARATION["de"]
    assert language([DECLARATION["en"], german]) == "de"
    assert language([DECLARATION["en"], german, "ok"]) == "de"
    assert language([]) == UNDETERMINED
    assert language([german], declared="sv") == "sv"
    assert language([german], declared="Klingon, as it is spoken") == "de"


def test_english_prompts_are_seldom_taken_for_another_language() -> None:
    """Of the labelled prompts, all but a few of ours are English, source code among them."""
    rows = [json.loads(line) for line in LABELLED.read_text(encoding="utf-8").splitlines()]
    found = [language(row["texts"]) for row in rows if row["source"] != "own" and row["label"] != "translation"]
    assert found.count("en") / len(found) > 0.85
    assert sum(name not in ("en", UNDETERMINED) for name in found) / len(found) < 0.01


def test_the_label_is_found_where_slices_are_made_by_it() -> None:
    def labelled(rule: EndpointRule, **record: object) -> tuple[dict[str, str], str | None]:
        asked = chat(request_messages=[{"role": "user", "content": DECLARATION["de"]}])
        (decided,) = fates([asked | record], rule)
        assert isinstance(decided, Admitted), decided.record
        return dict(decided.record.labels or {}), decided.record.slice_key

    labels, slice_key = labelled(BY_LANGUAGE)
    assert labels[LANGUAGE] == "de"
    assert str(slice_key).endswith(",language=de")
    assert LANGUAGE not in labelled(first_only(RULE))[0], "nobody asked"
    declared = {"metadata": {LANGUAGE: "sv"}}
    assert labelled(BY_LANGUAGE, **declared)[0][LANGUAGE] == "sv"
    mine = replace(BY_LANGUAGE, labels={LANGUAGE: ("de-CH",)})
    assert labelled(mine, metadata={LANGUAGE: "de-CH"})[0][LANGUAGE] == "de-CH"
    assert LANGUAGE not in labelled(mine)[0], "the operator's alone"
